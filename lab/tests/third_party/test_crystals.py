import itertools

import pytest
import torch

from tacache.errors import HostError
from tacache_lab.third_party import crystals
from tacache_lab.third_party.crystals import (
    BATCH,
    CRYSTALS,
    NETWORK,
    NUMBERS,
    ROWS,
    CrystalDenoiser,
    crystal_times,
    crystal_velocity,
    embedding,
    standardized,
)

# the channels of each group of blocks, and of what a noise level adds to
BLOCKS = {
    "b1": (3, 32, 32, 32), "b2": (32, 64, 64, 64), "b3": (64, 128, 128, 128),
    "b_mid": (128, 64, 64, 128), "b4": (256, 128, 64, 64), "b5": (128, 64, 32, 32),
    "b6": (64, 32, 32, 32),
}  # fmt: skip
LEVELS = {"te1": 3, "te2": 32, "te3": 64, "te_mid": 128, "te4": 256, "te5": 128, "te6": 64}
STRIDED = {"down1": 32, "down2": 64, "down3": 128, "up1": 128, "up2": 64, "up3": 32}


def random_weights() -> dict[str, torch.Tensor]:
    """Weights of the network's shapes."""
    shapes = {"conv_out": (3, 32, 3)} | {name: (n, n, 4) for name, n in STRIDED.items()}
    plain = {}
    for name, channels in LEVELS.items():
        shapes |= {f"{name}.0": (channels, 256), f"{name}.2": (channels, channels)}
    for group, channels in BLOCKS.items():
        for i, (n_in, n_out) in enumerate(itertools.pairwise(channels)):
            block = f"{group}.{i}"
            shapes |= {f"{block}.conv1": (n_out, n_in, 3), f"{block}.conv2": (n_out, n_out, 3)}
            shapes |= {f"{block}.norm1": (n_out,), f"{block}.norm2": (n_out,)}
            if n_in != n_out:
                plain[f"{block}.shortcut.weight"] = (n_out, n_in, 1)
    for name in ("attn1", "attn2"):
        plain |= {f"{name}.attention.in_proj_weight": (51, 17)}
        plain |= {f"{name}.attention.in_proj_bias": (51,)}
        shapes |= {f"{name}.attention.out_proj": (17, 17)}
        shapes |= {f"{name}.layernorm1": (17,), f"{name}.layernorm2": (17,)}
        shapes |= {f"{name}.ffn.0": (68, 17), f"{name}.ffn.2": (17, 68)}
    for name, shape in shapes.items():
        plain |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    draw = torch.Generator().manual_seed(0)
    return {NETWORK + k: 0.2 * torch.randn(shape, generator=draw) for k, shape in plain.items()}


def test_without_what_the_network_says_a_batch_is_scaled_as_in_edm():
    weights = random_weights()
    for name in ("conv_out.weight", "conv_out.bias"):
        weights[NETWORK + name] *= 0
    x = torch.randn(2, NUMBERS, ROWS)
    for sigma in (80.0, 0.5, 0.002):
        skipped = 0.25 / (sigma**2 + 0.25) * x
        assert torch.allclose(CrystalDenoiser(weights)(x, sigma), skipped)


def test_attention_runs_over_the_batch():
    """Crystals of a batch may change places, but one alone is another crystal."""
    denoiser, x = CrystalDenoiser(random_weights()), torch.randn(3, NUMBERS, ROWS)
    together = denoiser(x, 0.4)
    assert torch.allclose(denoiser(x[[2, 0, 1]], 0.4), together[[2, 0, 1]], atol=1e-4)
    assert (denoiser(x[:1], 0.4) - together[:1]).abs().max() > 1e-3


def test_the_velocity_leads_to_what_the_denoiser_sees():
    """One step from any time to 0 ends there."""
    denoiser = CrystalDenoiser(random_weights())
    velocity, x = crystal_velocity(denoiser), torch.randn(CRYSTALS.shape)[None]
    for t in (0.9, 0.3):
        end = x - t * velocity(x, t)
        assert torch.allclose(end[0], denoiser(x[0] / (1 - t), t / (1 - t)), atol=1e-4)


def test_kernels_have_mean_0_and_variance_1():
    kernels = standardized(torch.randn(4, 5, 3) + 2)
    assert torch.allclose(kernels.mean((1, 2)), torch.zeros(4), atol=1e-5)
    assert torch.allclose(kernels.var((1, 2)), torch.ones(4), atol=1e-3)


def test_an_embedding_has_sines_and_cosines_in_turns():
    assert embedding(0.0).view(-1, 2).unique(dim=0).tolist() == [[0, 1]]
    assert embedding(1.0)[:2].tolist() == pytest.approx([0.841471, 0.540302], abs=1e-6)


def test_the_grid_is_that_of_edm():
    times = crystal_times(50)
    assert len(times) == 51
    assert times[0] == pytest.approx(80 / 81)
    assert times[-2:] == (pytest.approx(0.002 / 1.002), 0.0)
    assert list(times) == sorted(times, reverse=True)
    assert crystal_times(1) == (pytest.approx(80 / 81), 0.0)


def test_a_batch_is_shown_a_crystal_a_row():
    x = torch.zeros(1, *CRYSTALS.shape)
    x[0, 1, 2, 5] = 3.0
    picture = CRYSTALS.picture(x)
    assert picture.shape == (BATCH, ROWS, NUMBERS)
    assert picture[1, 5, 2] == 1
    assert picture[0, 0, 0] == 0.5


@pytest.mark.slow
@pytest.mark.download
def test_the_published_denoiser_keeps_what_has_hardly_any_noise():
    try:
        velocity = CRYSTALS.load()
    except HostError as error:
        pytest.skip(f"{error}")
    times = crystals.crystal_times(20)
    x = times[0] * torch.randn(1, *CRYSTALS.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for t, t_next in itertools.pairwise(times):
            x = x - (t - t_next) * velocity(x, t)
        data = x - 0.01 * velocity(x, 0.01)
    assert x.abs().max() < 1.6  # the data is scaled to [-1, 1]
    assert float((data - x).norm() / x.norm()) < 0.05
