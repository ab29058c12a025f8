import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tacache.errors import HostError
from tacache_lab.picture_metrics import lpips, perceptual
from tacache_lab.picture_metrics import lpips_weights as weights
from tacache_lab.picture_metrics.perceptual import (
    MIN_PIXELS,
    STAGES,
    Network,
    distance,
    distances,
    taps,
)

WIDTHS = {
    "alex": [(64, 3, 11), (192, 64, 5), (384, 192, 3), (256, 384, 3), (256, 256, 3)],
    "vgg": [
        (width, inputs, 3)
        for width, inputs in zip(
            [64, 64, 128, 128, *[256] * 3, *[512] * 6],
            [3, 64, 64, 128, 128, *[256] * 3, *[512] * 5],
            strict=True,
        )
    ],
}


def random_network(backbone):
    generator = torch.Generator().manual_seed(0)
    convolutions = tuple(
        (torch.randn(width, inputs, kernel, kernel, generator=generator) / 30, torch.zeros(width))
        for width, inputs, kernel in WIDTHS[backbone]
    )
    features = taps(Network(STAGES[backbone], convolutions, ()), torch.zeros(1, 3, 32, 32))
    heads = tuple(torch.rand(one.shape[1], generator=generator) for one in features)
    return Network(STAGES[backbone], convolutions, heads)


def patterns(side=64):
    """Two smooth pictures that any machine makes alike."""
    y, x = torch.meshgrid(*[torch.linspace(0, 1, side)] * 2, indexing="ij")
    waves = (torch.sin(12 * x) * torch.cos(9 * y) + 1) / 2
    return torch.stack([x, y, (x + y) / 2])[None], torch.stack([y, x, waves])[None]


@pytest.fixture
def fetched():
    """The published weights, from the cache or the index."""
    try:
        for backbone in STAGES:
            weights.backbone_bytes(backbone)
    except HostError as error:
        pytest.skip(str(error))


def test_the_distance_of_a_hand_computed_case():
    # unit features (0.6, 0.8) and (0, 1): 0.5 * 0.36 + 2 * 0.04; the second place is alike
    pair = torch.tensor([[[3.0, 1.0], [4.0, 1.0]], [[0.0, 5.0], [5.0, 5.0]]])[:, :, None]
    assert float(distance([pair], [torch.tensor([0.5, 2.0])])) == pytest.approx(0.26 / 2)
    twice = distance([pair, pair], [torch.tensor([0.5, 2.0]), torch.tensor([1.0, 0.0])])
    assert float(twice) == pytest.approx(0.26 / 2 + 0.36 / 2)  # taps add up


@pytest.mark.parametrize(
    ("backbone", "sides"), [("alex", [15, 7, 3, 3, 3]), ("vgg", [64, 32, 16, 8, 4])]
)
def test_the_taps_have_the_sizes_of_the_backbone(backbone, sides):
    features = list(taps(random_network(backbone), torch.rand(1, 3, 64, 64)))
    assert [one.shape[2] for one in features] == sides
    assert all(bool((one >= 0).all()) for one in features)  # after the rectifier


@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["alex", "vgg"])
def test_a_distance_is_zero_symmetric_and_of_its_pair_alone(backbone):
    network = random_network(backbone)
    torch.manual_seed(0)
    side = MIN_PIXELS[backbone]
    one, other = torch.rand(2, 2, 3, side, side)
    values = distances(network, one, other)
    assert values.shape == (2,)
    assert bool((values > 0).all())
    assert torch.equal(distances(network, one, one), torch.zeros(2))
    assert torch.allclose(distances(network, other, one), values)
    assert torch.equal(distances(network, one[1:], other[1:]), values[1:])
    assert distances(network, one[:0], other[:0]).shape == (0,)


@pytest.mark.parametrize(
    ("shape", "match"),
    [((1, 3, 30, 64), "31x31"), ((1, 1, 64, 64), "RGB"), ((3, 64, 64), "LPIPS takes pictures")],
)
def test_pictures_that_do_not_fit(shape, match):
    with pytest.raises(HostError, match=match):
        lpips(torch.zeros(shape), torch.zeros(shape))


def test_an_unknown_backbone():
    with pytest.raises(HostError, match="alex, vgg"):
        lpips(torch.zeros(1, 3, 64, 64), torch.zeros(1, 3, 64, 64), backbone="squeeze")


@pytest.mark.slow
@pytest.mark.download
@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize(("backbone", "value"), [("alex", 0.630268), ("vgg", 0.936027)])
def test_patterns_are_as_far_apart_as_upstream_says(backbone, value):
    """Figures of the package lpips 0.1.4 with the same weights."""
    one, other = patterns()
    assert lpips(one, other, backbone).tolist() == pytest.approx([value], abs=2e-5)


@pytest.mark.download
@pytest.mark.usefixtures("fetched")
def test_the_example_pictures_of_the_authors():
    """Of github.com/richzhang/PerceptualSimilarity; no package carries them."""
    folder = os.environ.get("TACACHE_LPIPS_EXAMPLES")
    if not folder:
        pytest.skip("TACACHE_LPIPS_EXAMPLES does not name the folder `imgs` of LPIPS's repository")
    from PIL import Image

    def read(name):
        pixels = np.asarray(Image.open(Path(folder) / f"{name}.png").convert("RGB"))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None] / 255

    reference, first, second = map(read, ("ex_ref", "ex_p0", "ex_p1"))
    assert float(lpips(reference, first)) == pytest.approx(0.7219, abs=5e-5)
    assert float(lpips(reference, second)) == pytest.approx(0.1376, abs=5e-5)


@pytest.mark.slow
@pytest.mark.download
@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("backbone", ["alex", "vgg"])
def test_the_weights_have_the_shapes_of_the_paper(backbone):
    convolutions = weights.load_convolutions(backbone)
    assert [tuple(kernel.shape[:3]) for kernel, _ in convolutions] == WIDTHS[backbone]
    heads = weights.load_heads(backbone)
    published = weights._numpy_only(weights.backbone_bytes(backbone))  # has the heads too
    for i, head in enumerate(heads):
        theirs = published[f"NetLinLayer_{i}"]["Conv_0"]["kernel"].flatten()
        assert np.array_equal(head.numpy(), theirs)


def test_convolutions_are_read_from_the_published_arrays(monkeypatch):
    layer = {"kernel": np.arange(24, dtype="f4").reshape(2, 2, 3, 2), "bias": np.ones(2, "f4")}
    content = pickle.dumps({"AlexNet_0": {"Conv_0": layer}, "NetLinLayer_0": {}}, protocol=3)
    content = content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    monkeypatch.setattr(weights.PublishedArchive, "read", lambda self, name: content)
    ((kernel, bias),) = weights.load_convolutions("alex")
    assert kernel.shape == (2, 3, 2, 2)  # from (height, width, in, out)
    assert kernel[1, 2, 0, 1] == 11
    assert bias.tolist() == [1, 1]


def test_only_arrays_are_unpickled():
    with pytest.raises(HostError, match="only arrays"):
        weights._numpy_only(pickle.dumps(Path("x")))


def test_heads_need_torchmetrics(monkeypatch, tmp_path):
    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(HostError, match=r"tacache\[metrics\]"):
        weights.load_heads("alex")

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    monkeypatch.setattr(weights.importlib.util, "find_spec", lambda name: Spec)
    with pytest.raises(HostError, match="no LPIPS heads"):
        weights.load_heads("alex")


def test_the_network_is_loaded_once(monkeypatch):
    network, calls = random_network("alex"), []

    def load(backbone):
        calls.append(backbone)
        return network.convolutions

    monkeypatch.setattr(perceptual, "load_convolutions", load)
    monkeypatch.setattr(perceptual, "load_heads", lambda backbone: network.heads)
    perceptual.load_network.cache_clear()
    try:
        one, other = patterns(32)
        first, second = lpips(one, other), lpips(one, other)
        meta = perceptual.load_network("alex", "meta")
    finally:
        perceptual.load_network.cache_clear()
    assert torch.equal(first, second)
    assert calls == ["alex"]
    assert meta.heads[0].device.type == "meta"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("backbone", ["alex", "vgg"])
def test_cuda_gives_the_same(backbone):
    network, (one, other) = random_network(backbone), patterns()
    there = Network(
        network.stages,
        tuple((kernel.cuda(), bias.cuda()) for kernel, bias in network.convolutions),
        tuple(head.cuda() for head in network.heads),
    )
    expected = distances(network, one, other)
    assert torch.allclose(distances(there, one.cuda(), other.cuda()).cpu(), expected, rtol=1e-4)
