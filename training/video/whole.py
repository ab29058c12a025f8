"""The autoencoder over a whole clip at once, from the model's own layers.

``AutoencoderKLWan`` walks a clip in chunks of four frames and keeps the last frames of every layer;
that saves memory on long clips but is slow and hard to compile. On short clips the same sums
can be made in one pass: causal convolutions padded with zeros at the start, and a first frame that
the changes of length in time leave alone.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanResample, patchify, unpatchify
from torch import Tensor


def encode(model: Any, clip: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance of the latents of clips (count, 3, 4 k + 1, height, width)."""
    encoder = model.encoder
    x = patchify(clip, model.config.patch_size or 1)
    x = encoder.conv_in(x.contiguous(memory_format=torch.channels_last_3d))
    for layer in encoder.down_blocks:
        x = _shorter(layer, x) if isinstance(layer, WanResample) else layer(x)
    x = encoder.nonlinearity(encoder.norm_out(encoder.mid_block(x)))
    mean, log_variance = model.quant_conv(encoder.conv_out(x)).float().chunk(2, dim=1)
    return mean, log_variance.clamp(-30.0, 20.0)


def decode(model: Any, latents: Tensor) -> Tensor:
    """Clips of latents, not clamped."""
    decoder = model.decoder
    x = decoder.mid_block(decoder.conv_in(model.post_quant_conv(latents)))
    for block in decoder.up_blocks:
        for layer in block.resnets:
            x = layer(x)
        for layer in block.upsamplers or ():
            x = _longer(layer, x)
    x = decoder.conv_out(decoder.nonlinearity(decoder.norm_out(x)))
    return unpatchify(x, model.config.patch_size or 1).float()


def _shorter(layer: Any, x: Tensor) -> Tensor:
    """Half the size; in time, every second frame sees two before it, the first stays."""
    x = _in_space(layer, x)
    if layer.mode != "downsample3d":
        return x
    return torch.cat([x[:, :, :1], layer.time_conv(x)], dim=2)


def _longer(layer: Any, x: Tensor) -> Tensor:
    """Twice the size; in time, every frame but the first becomes two."""
    if layer.mode == "upsample3d":
        later = layer.time_conv(x[:, :, 1:]).unflatten(1, (2, -1))
        # channels stay last in memory: (count, frames, 2, height, width, channels)
        later = later.permute(0, 3, 1, 4, 5, 2).flatten(1, 2).permute(0, 4, 1, 2, 3)
        x = torch.cat([x[:, :, :1], later], dim=2)
    return _in_space(layer, x)


def _in_space(layer: Any, x: Tensor) -> Tensor:
    frames = x.shape[2]
    flat = layer.resample(x.transpose(1, 2).flatten(0, 1))
    return flat.unflatten(0, (-1, frames)).transpose(1, 2)
