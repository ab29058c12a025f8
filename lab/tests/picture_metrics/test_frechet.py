"""FID: exact on Gaussians, and what the network gets."""

import pytest
import torch

from tacache.errors import HostError
from tacache_lab.picture_metrics.frechet import (
    FeatureStatistics,
    compare_sets,
    frechet_distance,
    inception_features,
    load_inception,
)

DOUBLE = torch.float64


def gaussian(mean: list[float], deviations: list[float]) -> FeatureStatistics:
    """One with independent channels."""
    variances = torch.tensor(deviations, dtype=DOUBLE).square()
    return FeatureStatistics(torch.tensor(mean, dtype=DOUBLE), torch.diag(variances))


def test_independent_channels_add_up_the_differences_of_means_and_deviations():
    first, second = gaussian([0, 1], [1, 2]), gaussian([3, 1], [1, 5])
    assert frechet_distance(first, second) == pytest.approx(3**2 + (5 - 2) ** 2)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-12)
    assert frechet_distance(second, first) == pytest.approx(frechet_distance(first, second))


def test_covariances_that_do_not_commute():
    """The trace of the root of a product AB of two by two is (tr AB + 2 (det AB)^1/2)^1/2."""
    a = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=DOUBLE)
    b = torch.tensor([[4.0, -1.0], [-1.0, 1.0]], dtype=DOUBLE)
    zero = torch.zeros(2, dtype=DOUBLE)
    shared = ((a @ b).trace() + 2 * (a.det() * b.det()).sqrt()).sqrt()
    expected = float(a.trace() + b.trace() - 2 * shared)
    assert frechet_distance(
        FeatureStatistics(zero, a), FeatureStatistics(zero, b)
    ) == pytest.approx(expected)


def test_a_rotation_of_the_features_changes_nothing():
    draw = torch.Generator().manual_seed(0)
    first, second = (torch.randn(40, 5, generator=draw, dtype=DOUBLE) for _ in range(2))
    turn = torch.linalg.qr(torch.randn(5, 5, generator=draw, dtype=DOUBLE)).Q
    plain, turned = (
        frechet_distance(FeatureStatistics.of(a), FeatureStatistics.of(b))
        for a, b in ((first, second), (first @ turn, second @ turn))
    )
    assert plain == pytest.approx(turned)
    shifted = frechet_distance(FeatureStatistics.of(first), FeatureStatistics.of(first + 2))
    assert shifted == pytest.approx(5 * 2**2)


def test_statistics_are_those_of_the_features():
    statistics = FeatureStatistics.of(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    assert statistics.mean.tolist() == [1, 3]
    assert statistics.covariance.tolist() == [[2, 4], [4, 8]]


def test_halves_are_the_even_and_the_odd_pictures():
    """Even ones equal the reference, odd ones lie two aside in each of three channels."""
    reference = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    features = torch.stack([reference, reference + 2], dim=1).flatten(0, 1)
    distance = compare_sets(features, FeatureStatistics.of(reference))
    assert distance.halves == (pytest.approx(0, abs=1e-9), pytest.approx(3 * 2**2))
    assert 0 < distance.fid < distance.halves[1]


def test_too_few_pictures_and_other_shapes_are_refused():
    with pytest.raises(HostError, match="4 pictures"):
        compare_sets(torch.zeros(3, 2), gaussian([0, 0], [1, 1]))
    with pytest.raises(HostError, match="channels"):
        FeatureStatistics.of(torch.zeros(1, 2))
    with pytest.raises(HostError, match="count, 3"):
        inception_features(torch.nn.Identity(), torch.zeros(2, 1, 8, 8))


def test_the_network_gets_shifted_bytes_at_its_own_size():
    class Watching(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1:] == (3, 299, 299)
            return torch.stack([x.amin((1, 2, 3)), x.amax((1, 2, 3))], dim=1)

    pictures = torch.stack([torch.zeros(3, 8, 8), torch.ones(3, 8, 8), torch.full((3, 8, 8), 0.5)])
    features = inception_features(Watching(), pictures, batch=2)
    expected = torch.tensor([[-1, -1], [127 / 128, 127 / 128], [0, 0]])
    torch.testing.assert_close(features, expected)


@pytest.mark.slow
@pytest.mark.download
def test_the_published_network_tells_noise_from_a_grey_picture():
    try:
        network = load_inception()
    except HostError as error:
        pytest.skip(f"{error}")
    draw = torch.Generator().manual_seed(0)
    noise, grey = torch.rand(1, 3, 64, 64, generator=draw), torch.full((1, 3, 64, 64), 0.5)
    features = inception_features(network, torch.cat([noise, grey, grey]))
    assert features.shape == (3, 2048)
    assert (features >= 0).all()
    torch.testing.assert_close(features[1], features[2])
    assert (features[0] - features[1]).norm() > 1
