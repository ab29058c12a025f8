import io
import math

import numpy as np
import pytest
import torch

from tacache.errors import HostError
from tacache.plan import Plan
from tacache.stepper import sample
from tacache_lab.third_party import galaxies
from tacache_lab.third_party.galaxies import GalaxyScore, galaxy_times, read_arrays, rectified

HIDDEN, PATCH, SIDE, WIDE = 3, 4, 8, 5
PATCHES = (SIDE // PATCH) ** 2


def random_arrays(seed: int = 0) -> list[torch.Tensor]:
    """Arrays of a network with one block, in the order of the package's files."""
    shapes = [
        *((HIDDEN, 2, PATCH, PATCH), (HIDDEN, 1, 1), (1, HIDDEN, PATCH, PATCH), (1, 1, 1)),
        *((WIDE, PATCHES), (WIDE,), (PATCHES, WIDE), (PATCHES,)),
        *((WIDE, HIDDEN), (WIDE,), (HIDDEN, WIDE), (HIDDEN,)),
        *[(HIDDEN, PATCHES)] * 2,
        *[(PATCHES, HIDDEN)] * 2,
        *[(HIDDEN, PATCHES)] * 2,
    ]
    draw = torch.Generator().manual_seed(seed)
    return [*(torch.randn(shape, generator=draw) for shape in shapes), torch.tensor(10.0)]


def test_the_velocity_of_a_gaussian_is_the_exact_one():
    spread = 0.7

    def score(y, tau):
        a2 = math.exp(-tau)
        return -y / (a2 * spread**2 + 1 - a2)

    x = torch.linspace(-2, 2, 7)
    for t in (0.99, 0.5, 0.02):
        variance = (1 - t) ** 2 * spread**2 + t**2
        exact = (t - (1 - t) * spread**2) / variance * x
        assert torch.allclose(rectified(score)(x, t), exact, atol=1e-5)


def test_a_patch_is_written_the_way_round_that_the_package_has_it():
    """With blocks that add nothing and a norm that gives 1, a patch is the kernel, turned."""
    arrays = random_arrays()
    for i in (*range(4, 12), 16):
        arrays[i] = torch.zeros_like(arrays[i])
    arrays[17] = torch.ones_like(arrays[17])
    score = GalaxyScore(arrays)(torch.randn(2, 1, SIDE, SIDE), 1.0)
    patch = arrays[2].sum(1).flip(-1, -2) + arrays[3]
    assert torch.allclose(score, patch.repeat(2, 2, 2)[:, None], atol=1e-5)


def test_samples_of_a_batch_do_not_mix():
    network, y = GalaxyScore(random_arrays()), torch.randn(3, 1, SIDE, SIDE)
    assert torch.allclose(network(y, 2.0)[1:2], network(y[1:2], 2.0), atol=1e-5)


def test_only_arrays_are_read():
    arrays, file = random_arrays(), io.BytesIO()
    for array in arrays:
        np.save(file, array.numpy())
    for read, written in zip(read_arrays(file.getvalue()), arrays, strict=True):
        assert torch.equal(read, written)
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        read_arrays(pickled.getvalue())


def test_the_grid_begins_at_the_noisiest_level():
    times = galaxy_times(50)
    assert len(times) == 51
    assert times[0] == pytest.approx(0.993307, abs=1e-6)
    assert times[-1] == 0
    assert times[0] - times[1] == pytest.approx(times[0] / 50)


def test_pictures_are_grey_and_cut_off():
    x = torch.tensor([[-9.0, -0.5], [4.5, 99.0]])[None, None]
    assert galaxies.galaxy_picture(x)[..., 0].tolist() == [[0, 0], [0.5, 1]]
    assert galaxies.galaxy_picture(x).shape == (2, 2, 3)


@pytest.mark.slow
@pytest.mark.download
def test_the_published_network_makes_a_galaxy():
    """The brightest place of a picture is in its middle, and most of it is dark."""
    model = galaxies.GALAXIES[0]
    try:
        velocity = model.load()
    except HostError as error:
        pytest.skip(f"{error}")
    times = model.times(20)
    noise = times[0] * torch.randn(4, *model.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        pictures = sample(velocity, noise, Plan.full(times))[:, 0]
    for picture in pictures:
        row, column = divmod(int(picture.argmax()), 32)
        assert 10 <= row <= 21
        assert 10 <= column <= 21
        assert picture.median() < 0.3 < 1 < picture.max()
