import math

import pytest
import torch

from tacache.errors import HostError
from tacache.metrics import psnr


def test_psnr_of_a_known_error():
    reference = torch.zeros(2, 3, 4, 4)
    image = reference.clone()
    image[0] += 0.1  # mean squared error 0.01: 20 dB
    image[1, 0, 0, 0] = 1.0  # 1 / 48
    assert psnr(reference, image).tolist() == pytest.approx([20.0, 10 * math.log10(48)])


def test_equal_pictures_are_infinitely_close():
    picture = torch.rand(1, 3, 8, 8)
    assert psnr(picture, picture).tolist() == [math.inf]


def test_pictures_of_other_shapes_do_not_compare():
    with pytest.raises(HostError, match="do not compare"):
        psnr(torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 4, 5))
