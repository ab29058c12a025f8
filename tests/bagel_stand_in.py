"""A small stand-in with BAGEL's surface, written from its facts: for tests without a checkout.

It has what the host meets: packed images between two marker tokens, contexts that prompts are kept
in, guidance in an interval with three kinds of renorm, a language model that is entered through
`forward_inference`, and a flag of a cache that stays set. The numbers mean nothing.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

HIDDEN, CHANNELS, WORDS = 16, 64, 64
SIZE = (32, 32)
CALL = {"num_timesteps": 13, "image_shapes": SIZE, "cfg_text_scale": 4.0, "cfg_img_scale": 1.0}


class Config:
    """Any configuration: attributes, from a JSON file or from arguments."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    @classmethod
    def from_json_file(cls, path: str) -> Config:
        """The fields of a file."""
        return cls(**json.loads(Path(path).read_text()))


Qwen2Config = SiglipVisionConfig = BagelConfig = Config


class Layer(nn.Module):
    """Mixes a token with its image's mean and its prompt's context."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.mean, self.context = (nn.Linear(HIDDEN, HIDDEN) for _ in range(3))

    def forward(self, tokens: Tensor, context: Tensor) -> Tensor:
        """One image's tokens under one context."""
        mixed = self.own(tokens) + self.mean(tokens.mean(0)) + self.context(context)
        return tokens + torch.tanh(mixed)


class Core(nn.Module):
    """What does the work: one pass a call."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(WORDS, HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, sequence: Tensor, lens: Tensor, contexts: list[Tensor]) -> Tensor:
        """All packed images, each under its context."""
        found = []
        for tokens, context in zip(sequence.split(lens.tolist()), contexts, strict=True):
            for layer in self.layers:
                if getattr(self, "enable_taylorseer", False):
                    layer.enable_taylorseer = True  # and it stays
                tokens = layer(tokens, context)
            found.append(tokens)
        return torch.cat(found)


class Qwen2ForCausalLM(nn.Module):
    """The language model; `forward_inference` bypasses its `__call__`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.model = Core(config.num_hidden_layers)

    def forward_inference(self, **arguments: Any) -> Tensor:
        """One pass."""
        return self.model(**arguments)


class SiglipVisionModel(nn.Module):
    """Loaded and never asked."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        embeddings = types.SimpleNamespace(convert_conv2d_to_linear=lambda config, meta: None)
        self.vision_model = types.SimpleNamespace(embeddings=embeddings)
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(config.num_hidden_layers))


class Bagel(nn.Module):
    """The model around the language model."""

    def __init__(self, language_model: nn.Module, vit_model: nn.Module, config: Config) -> None:
        super().__init__()
        self.language_model, self.vit_model, self.config = language_model, vit_model, config
        self.latent_downsample, self.max_latent_size = 16, config.max_latent_size
        self.latent_patch_size, self.latent_channel = 2, 16
        self.vae2llm, self.llm2vae = nn.Linear(CHANNELS, HIDDEN), nn.Linear(HIDDEN, CHANNELS)
        self.time_embedder = nn.Linear(3, HIDDEN)
        self.latent_pos_embed = nn.Embedding(config.max_latent_size**2, HIDDEN)

    def prepare_prompts(self, curr_kvlens, curr_rope, prompts, tokenizer, new_token_ids):
        """Words as numbers, and how long contexts are with them."""
        ids = [tokenizer.encode(prompt) for prompt in prompts]
        lens = [a + len(b) for a, b in zip(curr_kvlens, ids, strict=True)]
        return {"ids": ids}, lens, lens

    def forward_cache_update_text(self, past_key_values, ids):
        """The contexts with these words added."""
        known = past_key_values or [torch.zeros(HIDDEN)] * len(ids)
        new = [self.language_model.model.embed_tokens(torch.tensor(one)).mean(0) for one in ids]
        return [a + b.float().cpu() for a, b in zip(known, new, strict=True)]

    def prepare_vae_latent(self, curr_kvlens, curr_rope, image_sizes, new_token_ids):
        """Noise and the packing of several images."""
        noises, positions, texts, tokens, seqlens = [], [], [], [], []
        for height, width in image_sizes:
            rows, columns = height // self.latent_downsample, width // self.latent_downsample
            start, count = sum(seqlens), rows * columns
            noises.append(torch.randn(count, CHANNELS))
            at = torch.arange(rows)[:, None] * self.max_latent_size + torch.arange(columns)
            positions.append(at.flatten())
            texts += [start, start + count + 1]
            tokens += range(start + 1, start + count + 1)
            seqlens.append(count + 2)
        edges = [new_token_ids["start_of_image"], new_token_ids["end_of_image"]]
        return {
            "packed_text_ids": torch.tensor(edges * len(image_sizes)),
            "packed_text_indexes": torch.tensor(texts),
            "packed_init_noises": torch.cat(noises),
            "packed_vae_position_ids": torch.cat(positions),
            "packed_vae_token_indexes": torch.tensor(tokens),
            "packed_seqlens": torch.tensor(seqlens, dtype=torch.int),
            "packed_position_ids": torch.zeros(sum(seqlens), dtype=torch.long),
            "packed_indexes": torch.arange(sum(seqlens)),
            "key_values_lens": torch.tensor(curr_kvlens),
            "packed_key_value_indexes": torch.arange(sum(curr_kvlens)),
        }

    def prepare_vae_latent_cfg(self, curr_kvlens, curr_rope, image_sizes):
        """Packing under another context, of which this stand-in needs nothing."""
        names = ("position_ids", "query_indexes", "key_value_indexes")
        found = {f"cfg_packed_{name}": torch.zeros(1) for name in names}
        return {**found, "cfg_key_values_lens": torch.tensor(curr_kvlens)}

    @torch.no_grad()
    def generate_image(
        self,
        packed_text_ids: Tensor,
        packed_text_indexes: Tensor,
        packed_init_noises: Tensor,
        packed_vae_position_ids: Tensor,
        packed_vae_token_indexes: Tensor,
        packed_seqlens: Tensor,
        packed_position_ids: Tensor,
        packed_indexes: Tensor,
        past_key_values: Any,
        key_values_lens: Tensor,
        packed_key_value_indexes: Tensor,
        num_timesteps: int = 24,
        timestep_shift: float = 1.0,
        cfg_renorm_min: float = 0.0,
        cfg_renorm_type: str = "global",
        cfg_interval: Any = (0, 1),
        cfg_text_scale: float = 1.0,
        cfg_text_past_key_values: Any = None,
        cfg_img_scale: float = 1.0,
        cfg_img_past_key_values: Any = None,
        enable_taylorseer: bool = False,
        **packing: Any,
    ) -> tuple[Tensor, ...]:
        """Euler steps from noise to the latents of each packed image."""
        self.language_model.model.enable_taylorseer = enable_taylorseer
        x = packed_init_noises
        t = torch.linspace(1, 0, num_timesteps, device=x.device)
        t = timestep_shift * t / (1 + (timestep_shift - 1) * t)
        for n, now in tqdm(enumerate(t[:-1]), total=len(t) - 1):
            guided = now > cfg_interval[0] and now <= cfg_interval[1]
            v = self._forward_flow(
                x_t=x,
                timestep=now.repeat(len(x)),
                packed_vae_token_indexes=packed_vae_token_indexes,
                packed_vae_position_ids=packed_vae_position_ids,
                packed_text_ids=packed_text_ids,
                packed_text_indexes=packed_text_indexes,
                packed_indexes=packed_indexes,
                packed_position_ids=packed_position_ids,
                packed_seqlens=packed_seqlens,
                key_values_lens=key_values_lens,
                past_key_values=past_key_values,
                packed_key_value_indexes=packed_key_value_indexes,
                cfg_renorm_min=cfg_renorm_min,
                cfg_renorm_type=cfg_renorm_type,
                cfg_text_scale=cfg_text_scale if guided else 1.0,
                cfg_text_past_key_values=cfg_text_past_key_values,
                cfg_img_scale=cfg_img_scale if guided else 1.0,
                cfg_img_past_key_values=cfg_img_past_key_values,
            )
            x = x - v.to(x.device) * (t[n] - t[n + 1])
        return x.split((packed_seqlens - 2).tolist())

    @torch.no_grad()
    def _forward_flow(
        self,
        x_t: Tensor,
        timestep: Tensor,
        packed_vae_token_indexes: Tensor,
        packed_vae_position_ids: Tensor,
        packed_text_ids: Tensor,
        packed_text_indexes: Tensor,
        packed_indexes: Tensor,
        packed_position_ids: Tensor,
        packed_seqlens: Tensor,
        key_values_lens: Tensor,
        past_key_values: Any,
        packed_key_value_indexes: Tensor,
        cfg_renorm_min: float = 0.0,
        cfg_renorm_type: str = "global",
        cfg_text_scale: float = 1.0,
        cfg_text_past_key_values: Any = None,
        cfg_img_scale: float = 1.0,
        cfg_img_past_key_values: Any = None,
    ) -> Tensor:
        marks = self.language_model.model.embed_tokens(packed_text_ids)
        sequence = marks.new_zeros(int(packed_seqlens.sum()), HIDDEN)
        sequence[packed_text_indexes] = marks
        waves = torch.stack([timestep, (3 * timestep).sin(), (3 * timestep).cos()], dim=-1)
        embedded = self.vae2llm(x_t) + self.time_embedder(waves)
        embedded = embedded + self.latent_pos_embed(packed_vae_position_ids)
        sequence[packed_vae_token_indexes] = embedded.to(sequence.dtype)

        def under(contexts: Any) -> Tensor:
            found = self.language_model.forward_inference(
                sequence=sequence, lens=packed_seqlens, contexts=contexts
            )
            return self.llm2vae(found)[packed_vae_token_indexes]

        v = under(past_key_values)
        text = under(cfg_text_past_key_values) if cfg_text_scale > 1 else None
        image = under(cfg_img_past_key_values) if cfg_img_scale > 1 else None
        if text is None:
            return v
        mixed = text + cfg_text_scale * (v - text)
        if cfg_renorm_type == "text_channel":
            mixed = mixed * renorm(v, mixed, cfg_renorm_min, per_token=True)
        if image is not None:
            mixed = image + cfg_img_scale * (mixed - image)
        if cfg_renorm_type != "text_channel":
            per_token = cfg_renorm_type == "channel"
            mixed = mixed * renorm(v, mixed, cfg_renorm_min, per_token=per_token)
        return mixed


def renorm(v: Tensor, guided: Tensor, least: float, *, per_token: bool) -> Tensor:
    dims = {"dim": -1, "keepdim": True} if per_token else {}
    return (torch.norm(v, **dims) / (torch.norm(guided, **dims) + 1e-8)).clamp(least, 1.0)


class Qwen2Tokenizer:
    """A word is a number."""

    @classmethod
    def from_pretrained(cls, folder: str) -> Qwen2Tokenizer:
        """Looks at its file, as the real one does."""
        json.loads((Path(folder) / "vocab.json").read_text())
        return cls()

    def encode(self, text: str) -> list[int]:
        """One number a word."""
        return [sum(map(ord, word)) % (WORDS - 4) for word in text.split()] or [0]


class Autoencoder(nn.Module):
    """Latents to pixels by one linear map of each token's channels."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.Linear(16, 3)

    def decode(self, z: Tensor) -> Tensor:
        """Pixels of (1, 16, height, width)."""
        small = self.decoder(z.movedim(1, -1)).movedim(-1, 1)
        return small.repeat_interleave(8, dim=-1).repeat_interleave(8, dim=-2)


def load_ae(local_path: str) -> tuple[Autoencoder, Config]:
    vae = Autoencoder()
    vae.load_state_dict(load_file(local_path))
    return vae, Config(downsample=8, z_channels=16)


class ImageTransform:
    """Made and never called."""

    def __init__(self, max_image_size: int, min_image_size: int, image_stride: int) -> None:
        self.sizes = max_image_size, min_image_size, image_stride


def add_special_tokens(tokenizer: Any) -> tuple[Any, dict[str, int], int]:
    names = ("bos_token_id", "eos_token_id", "start_of_image", "end_of_image")
    return tokenizer, {name: WORDS - 4 + i for i, name in enumerate(names)}, len(names)


class InterleaveInferencer:
    """Prompts to pictures, one at a time."""

    autocast = ""  # the device to cast on; the real one always asks for bfloat16 on CUDA

    def __init__(self, model, vae_model, tokenizer, vae_transform, vit_transform, new_token_ids):
        self.model, self.vae_model, self.tokenizer = model, vae_model, tokenizer
        self.vae_transform, self.vit_transform = vae_transform, vit_transform
        self.new_token_ids = new_token_ids

    def init_gen_context(self) -> dict[str, Any]:
        """A context without words."""
        return {"kv_lens": [0], "ropes": [0], "past_key_values": []}

    def interleave_inference(
        self,
        input_lists: list[Any],
        think: bool = False,
        understanding_output: bool = False,
        cfg_text_scale: float = 3.0,
        cfg_img_scale: float = 1.5,
        cfg_interval: Any = (0.4, 1.0),
        timestep_shift: float = 3.0,
        num_timesteps: int = 50,
        cfg_renorm_min: float = 0.0,
        cfg_renorm_type: str = "global",
        image_shapes: tuple[int, int] = (1024, 1024),
        enable_taylorseer: bool = False,
    ) -> list[Any]:
        """The outputs for a list of inputs: here one prompt and one picture."""
        with torch.autocast(self.autocast or "cuda", torch.bfloat16, enabled=bool(self.autocast)):
            arguments = packed_arguments(self, input_lists, [tuple(image_shapes)])
            (latent,) = self.model.generate_image(
                **arguments,
                cfg_text_scale=cfg_text_scale,
                cfg_img_scale=cfg_img_scale,
                cfg_interval=cfg_interval,
                timestep_shift=timestep_shift,
                num_timesteps=num_timesteps,
                cfg_renorm_min=cfg_renorm_min,
                cfg_renorm_type=cfg_renorm_type,
                enable_taylorseer=enable_taylorseer,
            )
            return [self.decode_image(latent, image_shapes)]

    def decode_image(self, latent: Tensor, image_shape: tuple[int, int]) -> Image.Image:
        """The picture of one image's tokens."""
        rows, columns = (side // 16 for side in image_shape)
        grid = latent.reshape(1, rows, columns, 2, 2, 16).permute(0, 5, 1, 3, 2, 4)
        pixels = self.vae_model.decode(grid.reshape(1, 16, rows * 2, columns * 2))
        pixels = (pixels[0].float() * 0.5 + 0.5).nan_to_num().clamp(0, 1).movedim(0, -1) * 255
        return Image.fromarray(pixels.detach().cpu().numpy().astype(np.uint8))

    def __call__(self, image: Any = None, text: str | None = None, **call: Any) -> dict[str, Any]:
        """The picture of a prompt; a picture to edit is one more word."""
        words = text if image is None else f"{text} {np.asarray(image).mean():.0f}"
        return {"image": self.interleave_inference([words], **call)[0], "text": None}


def packed_arguments(inferencer: Any, prompts: list[str], sizes: list[Any]) -> dict[str, Any]:
    """Arguments of `generate_image` for several packed images; for the real BAGEL as well."""
    model, start = inferencer.model, [0] * len(prompts)
    texts, lens, ropes = model.prepare_prompts(
        curr_kvlens=start,
        curr_rope=start,
        prompts=prompts,
        tokenizer=inferencer.tokenizer,
        new_token_ids=inferencer.new_token_ids,
    )

    def empty() -> Any:
        return inferencer.init_gen_context()["past_key_values"]

    with torch.no_grad():
        context = model.forward_cache_update_text(empty(), **texts)
    latents = model.prepare_vae_latent(
        curr_kvlens=lens,
        curr_rope=ropes,
        image_sizes=sizes,
        new_token_ids=inferencer.new_token_ids,
    )
    without = empty()
    if isinstance(without, list):
        without = [torch.zeros(HIDDEN) for _ in prompts]
    named = {"text": (without, start, start), "img": (context, lens, ropes)}
    guidance = {}
    for name, (kept, kvlens, rope) in named.items():
        found = model.prepare_vae_latent_cfg(curr_kvlens=kvlens, curr_rope=rope, image_sizes=sizes)
        guidance |= {key.replace("cfg_", f"cfg_{name}_"): value for key, value in found.items()}
        guidance[f"cfg_{name}_past_key_values"] = kept
    return {**latents, "past_key_values": context, **guidance}


def inferencer(seed: int = 0) -> InterleaveInferencer:
    """The stand-in with random weights, ready to call."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        vit = Config(num_hidden_layers=1)
        config = Config(max_latent_size=64, interpolate_pos=False, _name_or_path="stand-in")
        language_model = Qwen2ForCausalLM(Config(num_hidden_layers=2))
        model = Bagel(language_model, SiglipVisionModel(vit), config).eval()
        vae = Autoencoder()
    return InterleaveInferencer(model, vae, Qwen2Tokenizer(), None, None, _token_ids())


def _token_ids() -> dict[str, int]:
    return add_special_tokens(None)[1]


# --- a checkout and weights on disk ----------------------------------------------------------

SOURCES = {
    "inferencer.py": "InterleaveInferencer",
    "modeling/__init__.py": "",
    "modeling/autoencoder.py": "load_ae",
    "modeling/qwen2/__init__.py": "Qwen2Tokenizer",
    "modeling/bagel/__init__.py": "Bagel, BagelConfig, Qwen2Config, Qwen2ForCausalLM, "
    "SiglipVisionConfig, SiglipVisionModel",
    "modeling/bagel/bagel.py": "Bagel",
    "data/__init__.py": "",
    "data/data_utils.py": "add_special_tokens",
    "data/transforms.py": "ImageTransform",
}


def write_checkout(folder: Path) -> Path:
    """A folder laid out like BAGEL's checkout, whose modules are the stand-in's."""
    for name, names in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"from {__name__} import {names}\n" if names else "")
    return folder


def write_weights(folder: Path) -> Path:
    """The stand-in's weights in the files that BAGEL's are in."""
    made = inferencer()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "llm_config.json").write_text('{"num_hidden_layers": 2}')
    (folder / "vit_config.json").write_text('{"num_hidden_layers": 2}')  # the last is left out
    (folder / "vocab.json").write_text("{}")
    save_file(made.model.state_dict(), folder / "ema.safetensors")
    save_file(made.vae_model.state_dict(), folder / "ae.safetensors")
    return folder


@contextmanager
def no_checkout_loaded() -> Iterator[None]:
    """BAGEL's module names free for the length of a `with` block, then as they were."""

    def loaded() -> dict[str, Any]:
        names = ("data", "modeling", "inferencer")
        return {k: v for k, v in sys.modules.items() if k.partition(".")[0] in names}

    before = loaded()
    for name in before:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(before)
