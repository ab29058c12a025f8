import json

import pytest
import torch
from typer.testing import CliRunner

from tacache import Plan, time_grid
from tacache.cli import model_kinds
from tacache.cli.command_line import app
from tacache.errors import HostError, TACacheError
from tacache.hosts import calibrate
from tacache.prompts import Sample
from tacache_lab.bench import read_records
from tacache_lab.third_party import KINDS, MODELS, ThirdPartyModel, VelocityHost
from tacache_lab.third_party.velocity_host import ThirdPartyKind


def velocity(x, t):
    return torch.sin(2 * x) + t * x


TOY = ThirdPartyModel(
    name="toy",
    package="toy==1",
    shape=(4, 4, 3),
    times=lambda steps: tuple(0.9 * t for t in time_grid(steps)),
    load=lambda: velocity,
    picture=lambda x: x[0].sigmoid().numpy(),
)
CALL = {"steps": 10}


def test_the_noise_of_a_sample_is_its_own():
    host = VelocityHost(TOY)
    first, second, third = (
        host.noise(Sample(text, seed), 1.0) for text, seed in (("a", 0), ("a", 1), ("b", 0))
    )
    assert torch.equal(first, host.noise(Sample("a", 0), 1.0))
    assert torch.equal(0.5 * first, host.noise(Sample("a", 0), 0.5))
    assert not torch.equal(first, second)
    assert not torch.equal(first, third)
    assert first[0, 0, 0, 0] == pytest.approx(0.0327338, abs=1e-6)  # on every machine


def test_a_call_follows_its_plan():
    host, subject = VelocityHost(TOY), Sample("a", 0)
    full = host.draw(subject, CALL)
    plan = Plan.full(TOY.times(10))
    with host.follow(plan, CALL) as call:
        assert host.run_plan == plan
        assert (host.draw(subject, call) == full).all()
        with host.full():
            assert host.run_plan is None
    assert host.run_plan is None
    assert host.with_steps(CALL, 5) == {"steps": 5}


def test_runs_are_measured_together():
    profile = calibrate(VelocityHost(TOY), ["a", "b"], call=CALL)
    assert profile.samples == 2
    assert profile.times == TOY.times(10)
    assert profile.origin.model == "toy"


def test_what_the_model_has_not_is_refused():
    host, kind = VelocityHost(TOY), ThirdPartyKind(TOY)
    with pytest.raises(HostError, match="steps only"):
        host.check({"steps": 3, "height": 32})
    with pytest.raises(HostError, match="steps only"):
        kind.call_arguments("toy", None, height=32)
    with pytest.raises(TACacheError, match="no options"):
        kind.load("toy", {"dtype": "float16"}, False)
    with pytest.raises(TACacheError, match="no prompts"):
        kind.prompts_of("toy", "mine.txt")
    with pytest.raises(TACacheError, match="benchmarks only"):
        kind.accelerate(None, {})


def test_the_command_benchmarks_a_model_without_prompts(monkeypatch, tmp_path):
    monkeypatch.setitem(model_kinds.KINDS, "toy", ThirdPartyKind(TOY))
    out = tmp_path / "toy.jsonl"
    asked = ["bench", "toy", "--methods", "fitted,fewer", "--evaluations", "4", "--steps", "10"]
    more = ["--count", "2", "--calibration-count", "3", "--metrics", "psnr", "--json"]
    made = CliRunner().invoke(app, [*asked, *more, "-o", str(out)])
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["done"] == 6
    records = read_records(out)
    assert {(record.method, record.spent) for record in records} == {
        ("full", 10), ("fitted", 4), ("fewer", 4),
    }  # fmt: skip
    assert {record.prompt for record in records} == {"sample 1", "sample 2"}
    assert {record.origin.denoiser for record in records} == {"toy==1"}


def test_the_models_are_named_for_the_command():
    assert list(MODELS) == ["galaxies-32", "galaxies-64", "crystals"] == list(KINDS)
    for name, model in MODELS.items():
        assert model.name == name
        assert len(model.times(7)) == 8
        assert KINDS[name].steps_of({"steps": 7}) == 7
