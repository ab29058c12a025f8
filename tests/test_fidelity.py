import math
import sys

import pytest
import torch
from torch.nn.functional import pad

from tacache.errors import HostError
from tacache.fidelity import CAP, capped, spectral_distance
from tacache_lab.picture_metrics import frame_changes, per_frame, psnr, ssim


def test_psnr_of_a_known_error():
    reference = torch.zeros(2, 3, 4, 4)
    image = reference.clone()
    image[0] += 0.1  # mean squared error 0.01: 20 dB
    image[1, 0, 0, 0] = 1.0  # 1 / 48
    assert psnr(reference, image).tolist() == pytest.approx([20.0, 10 * math.log10(48)])


def test_equal_pictures_are_infinitely_close():
    picture = torch.rand(1, 3, 8, 8)
    assert psnr(picture, picture).tolist() == [math.inf]


def test_files_hold_a_number_in_the_place_of_infinity():
    assert [capped(value) for value in (math.inf, 31.5, -math.inf)] == [CAP, 31.5, -CAP]
    assert math.isnan(capped(math.nan))  # what is no number stays none


@pytest.mark.parametrize("metric", [psnr, ssim])
def test_pictures_of_other_shapes_do_not_compare(metric):
    with pytest.raises(HostError, match="do not compare"):
        metric(torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 5))


@pytest.mark.slow
def test_ssim_of_even_pictures_is_what_their_means_give():
    reference = torch.full((2, 3, 16, 16), 0.5)
    image = torch.stack([torch.full((3, 16, 16), 0.5), torch.full((3, 16, 16), 0.25)])
    luminance = (2 * 0.5 * 0.25 + 1e-4) / (0.5**2 + 0.25**2 + 1e-4)  # no variance: eq. 6 of SSIM
    assert ssim(reference, image).tolist() == pytest.approx([1.0, luminance])


def test_ssim_is_the_mean_over_gaussian_windows_mirrored_at_the_edges():
    torch.manual_seed(0)
    reference, image = torch.rand(2, 1, 1, 7, 8, dtype=torch.float64)
    offset = torch.arange(11, dtype=torch.float64) - 5
    window = torch.exp(-(offset**2) / (2 * 1.5**2))
    weights = torch.outer(window, window) / window.sum() ** 2
    mirrored = [pad(one, (5, 5, 5, 5), mode="reflect")[0, 0] for one in (reference, image)]
    values = []
    for i in range(7):
        for j in range(8):
            a, b = (one[i : i + 11, j : j + 11] for one in mirrored)
            mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
            variance_a = (weights * a * a).sum() - mean_a**2
            variance_b = (weights * b * b).sum() - mean_b**2
            covariance = (weights * a * b).sum() - mean_a * mean_b
            above = (2 * mean_a * mean_b + 1e-4) * (2 * covariance + 9e-4)
            below = (mean_a**2 + mean_b**2 + 1e-4) * (variance_a + variance_b + 9e-4)
            values.append(float(above / below))
    assert ssim(reference, image).tolist() == pytest.approx([sum(values) / len(values)], abs=1e-9)


def test_ssim_is_per_picture():
    torch.manual_seed(0)
    reference, image = torch.rand(2, 3, 3, 16, 16)
    together = ssim(reference, image)
    assert together.shape == (3,)
    alone = [float(ssim(reference[i : i + 1], image[i : i + 1])) for i in range(3)]
    assert together.tolist() == pytest.approx(alone)


def test_ssim_in_single_precision_is_right_to_six_digits():
    generator = torch.Generator().manual_seed(0)
    reference = torch.rand(1, 3, 32, 32, generator=generator)
    image = (reference + 0.05 * torch.randn(1, 3, 32, 32, generator=generator)).clamp(0, 1)
    quick = ssim(reference, image, dtype=torch.float32)
    assert quick.dtype is torch.float32
    assert float(quick) == pytest.approx(float(ssim(reference, image)), abs=1e-6)
    assert float(quick) < 0.999


def test_ssim_wants_pictures():
    with pytest.raises(HostError, match="channels, height, width"):
        ssim(torch.zeros(3, 16, 16), torch.zeros(3, 16, 16))


def test_ssim_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.image", None)
    with pytest.raises(HostError, match=r"tacache\[metrics\]"):
        ssim(torch.zeros(1, 3, 16, 16), torch.zeros(1, 3, 16, 16))


def test_a_clip_has_the_mean_of_its_frames():
    torch.manual_seed(0)
    reference, clip = torch.rand(2, 2, 9, 3, 16, 16)  # more frames than are measured together
    for metric in (psnr, ssim):
        frames = [float(metric(reference[1, f : f + 1], clip[1, f : f + 1])) for f in range(9)]
        values = per_frame(metric, reference, clip)
        assert values.shape == (2,)
        assert float(values[1]) == pytest.approx(sum(frames) / 9)


def test_frame_changes_see_motion_and_not_a_constant_error():
    reference = torch.rand(1, 3, 3, 8, 8) * 0.5
    brighter, frozen = reference + 0.25, reference[:, :1].expand_as(reference)
    changes = frame_changes(reference)
    assert changes.shape == (1, 2, 3, 8, 8)
    assert torch.allclose(frame_changes(brighter), changes, atol=1e-6)
    assert torch.equal(frame_changes(frozen), torch.full_like(changes, 0.5))


def test_psnr_of_frame_changes_has_their_full_range_as_peak():
    reference = torch.zeros(1, 2, 3, 4, 4)
    clip = reference.clone()
    clip[:, 1] += 0.2  # a change of 0.2 that is not there: 10 log10(2^2 / 0.2^2) = 20 dB
    value = per_frame(psnr, frame_changes(reference), frame_changes(clip))
    assert value.tolist() == pytest.approx([20.0])


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (1, 0, 3, 8, 8)])
def test_clips_have_five_dimensions_and_frames(shape):
    with pytest.raises(HostError, match="samples, frames"):
        per_frame(psnr, torch.zeros(shape), torch.zeros(shape))


def test_one_frame_does_not_move():
    with pytest.raises(HostError, match="two frames"):
        frame_changes(torch.zeros(1, 1, 3, 8, 8))


def test_one_equal_frame_is_not_an_equal_clip():
    clip = torch.rand(1, 4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    other = clip.clone()
    other[:, 1:] = (other[:, 1:] + 0.1).clamp(0, 1)
    apart = [float(psnr(clip[:, n], other[:, n])) for n in range(1, 4)]
    found = float(per_frame(psnr, clip, other))
    assert found == pytest.approx((100.0 + sum(apart)) / 4, rel=1e-5)
    assert math.isinf(float(per_frame(psnr, clip, clip)))


def test_sound_that_is_ten_times_as_loud_is_twenty_decibels_away():
    sound = torch.randn(2, 1, 5000, generator=torch.Generator().manual_seed(0))
    louder = torch.stack([sound[0], 10 * sound[1]])
    assert spectral_distance(sound, louder).tolist() == pytest.approx([0.0, 20.0], abs=1e-3)


def test_a_tone_at_another_pitch_is_far_and_one_with_another_phase_is_near():
    time = torch.arange(8192) / 8192
    tone, moved, higher = (
        torch.sin(2 * math.pi * pitch * time + phase)[None]
        for pitch, phase in ((440, 0.0), (440, 1.0), (660, 0.0))
    )
    near, far = (float(spectral_distance(tone, other)) for other in (moved, higher))
    assert near < 3 < 10 < far


def test_what_is_silent_beside_the_loudest_part_makes_no_distance():
    sound = torch.zeros(1, 4096)
    sound[:, :1024] = torch.randn(1, 1024, generator=torch.Generator().manual_seed(0))
    hum = sound + 1e-9 * torch.randn(1, 4096, generator=torch.Generator().manual_seed(1))
    assert float(spectral_distance(sound, hum)) < 1e-3
    assert float(spectral_distance(torch.zeros(1, 64), torch.zeros(1, 64))) == 0
