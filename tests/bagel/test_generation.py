"""Pictures by BAGEL, written and compared."""

import pytest
from PIL import Image
from tests import bagel_stand_in
from tests.bagel_stand_in import CALL

from tacache import make_plan
from tacache.bagel import calibrate
from tacache.bagel.inferencer import BagelHost
from tacache.errors import HostError
from tacache.hosts import Request, generate
from tacache.prompts import Sample

FOX = Sample("A red fox!", 7)


@pytest.fixture(scope="module")
def inferencer():
    return bagel_stand_in.inferencer()


def test_full_steps_without_a_plan(inferencer, tmp_path):
    output = generate(BagelHost(inferencer), FOX, Request(None, CALL), tmp_path / "deep" / "fox")
    assert output.file == str(tmp_path / "deep" / "fox.png")
    assert (output.evaluations, output.psnr, output.full_file) == (None, None, None)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["fox.png"]


def test_a_plan_is_compared_with_full_steps(inferencer, tmp_path):
    plan = make_plan(calibrate(inferencer, ["a fox"], **CALL), evaluations=6)
    output = generate(
        BagelHost(inferencer), FOX, Request(plan, CALL, compare=True), tmp_path / "fox"
    )
    assert output.evaluations == 6
    assert output.psnr > 20
    full = generate(BagelHost(inferencer), FOX, Request(None, CALL), tmp_path / "again")
    assert Image.open(full.file).tobytes() == Image.open(output.full_file).tobytes()


def test_no_picture_is_an_error(inferencer, tmp_path, monkeypatch):
    monkeypatch.setattr(inferencer, "decode_image", lambda latent, shape: None)
    with pytest.raises(HostError, match=r"'A red fox!' with seed 7: the inferencer gave no pict"):
        generate(BagelHost(inferencer), FOX, Request(None, CALL), tmp_path / "fox")
    assert not list(tmp_path.iterdir())
