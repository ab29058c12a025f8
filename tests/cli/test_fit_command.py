"""`tacache fit` on a tiny pipeline saved to a folder, and `tacache show` of what it writes."""

import json
from pathlib import Path

import pytest
import torch
from tests.command_line import run, save_pipelines

from tacache import PlanError, TACacheError, time_grid
from tacache.cli.fit_command import SearchOptions
from tacache.cli.options import QualityOptions
from tacache.errors import StorageError
from tacache.fitting import check_budget
from tacache.fitting.aiming import flow_cost
from tacache.fitting.fit_options import FitOptions
from tacache.fitting.quality_goal import QualityGoal
from tacache.fitting.samples import FunctionSamples
from tacache.plan import Plan
from tacache.storage.frontier import Frontier
from tacache.storage.store import PlanStore

SIZE = ["--height", "32", "--width", "32", "--call", "max_sequence_length=32"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    return save_pipelines(root, "flux", "wan")


@pytest.fixture
def command(folder, tmp_path) -> list[object]:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a fox\na boat\na lamp\na kite\n")
    return ["fit", folder / "flux", "--prompts", prompts, "--steps", 6, *SIZE]


@pytest.mark.slow
def test_one_budget_is_a_plan_file_that_show_prints(command, tmp_path):
    out = tmp_path / "flux.plan.json"
    made = run(*command, "--evaluations", 3, "--fast", "-o", out)
    assert made.exit_code == 0, made.output
    plan = Plan.load(out)
    assert (plan.rule, plan.evaluations, plan.steps, plan.samples) == ("fitted", 3, 6, 3)
    certificate = plan.certificate
    assert certificate is not None
    assert f"Written to {out}" in made.output
    assert not list(tmp_path.glob("*.runs*"))
    assert not list(tmp_path.glob(".*"))
    for output in (made.output, run("show", out).output):
        assert f"PSNR {certificate.psnr:.2f} dB" in output
        assert "held-out sample" in output
        assert f"{certificate.evaluations_spent} evaluations, {certificate.date}" in output


@pytest.mark.slow
def test_without_a_file_the_store_has_the_plan(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = run(*command, "--evaluations", 3, "--fast")
    assert made.exit_code == 0, made.output
    (stored,) = PlanStore().plans()
    assert f"In the plan store as {stored.name}" in made.stdout
    assert stored.plan.certificate is not None
    assert stored.plan.origin.weights is not None
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.txt"]
    assert not list((PlanStore().folder.parent / "fits").iterdir())


@pytest.mark.slow
def test_a_file_is_written_beside_the_store(command, tmp_path):
    made = run(*command, "--evaluations", 3, "--fast", "--json", "-o", tmp_path / "p.json")
    facts = json.loads(made.stdout)
    (stored,) = PlanStore().plans()
    assert facts["stored"] == [stored.name]
    assert stored.plan == Plan.load(tmp_path / "p.json")


@pytest.mark.slow
def test_several_budgets_go_into_the_store(command, tmp_path):
    made = run(*command, "--evaluations", "2,3", "--fast")
    assert made.exit_code == 0, made.output
    names = {one.plan.evaluations: one.name for one in PlanStore().plans()}
    assert set(names) == {2, 3}
    facts = json.loads(run(*command, "--evaluations", "2,3", "--fast", "--json").stdout)
    assert facts["stored"] == [names[2], names[3]]
    assert [point["plan"] for point in facts["points"]] == [names[2], names[3]]


def test_a_store_that_takes_nothing_is_said_before_the_work(command, home):
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file in the place of the folder")
    made = run(*command, "--evaluations", 3, "--fast")
    assert made.exit_code == 2
    assert "is a file, and a folder is needed" in made.stderr


@pytest.mark.slow
def test_a_disk_that_fills_up_meanwhile_loses_no_runs(command, home, monkeypatch):
    def full(self, plan):
        raise StorageError("cannot write it (No space left on device): make room")

    with monkeypatch.context() as patch:
        patch.setattr(PlanStore, "put", full)
        made = run(*command, "--evaluations", 3, "--fast")
    assert made.exit_code == 2
    assert "No space left on device" in made.stderr
    assert list((home / "fits").glob("*.runs"))
    assert run(*command, "--evaluations", 3, "--fast").exit_code == 0
    assert len(PlanStore().plans()) == 1


@pytest.mark.slow
def test_with_a_file_a_store_that_takes_nothing_costs_nothing(command, home, tmp_path):
    home.write_text("a file in the place of the folder")
    made = run(*command, "--evaluations", 3, "--fast", "-o", tmp_path / "p.json")
    assert made.exit_code == 0, made.output
    assert Plan.load(tmp_path / "p.json").evaluations == 3
    assert "the plan store was left as it is" in made.stderr


@pytest.mark.slow
def test_prompts_of_ones_own_are_recommended(folder):
    made = run("fit", folder / "flux", "--steps", 4, *SIZE, "--count", 2, "--evaluations", 2)
    assert made.exit_code == 0, made.output
    assert "some of your own make a better plan" in made.stderr


@pytest.mark.slow
def test_the_plan_generates(command, folder, tmp_path):
    out = tmp_path / "p.json"
    assert run(*command, "--evaluations", 3, "--fast", "-o", out).exit_code == 0
    made = run("generate", folder / "flux", "--plan", out, "--prompt", "a cat", "-o", tmp_path)
    assert made.exit_code == 0, made.output
    assert "3 evaluations" in made.output


@pytest.mark.slow
def test_several_budgets_are_a_folder_with_their_frontier(command, tmp_path):
    out = tmp_path / "flux"
    made = run(*command, "--evaluations", "4,2,4,3", "--fast", "-o", out)
    assert made.exit_code == 0, made.output
    frontier = Frontier.load(out / "frontier.json")
    assert [point.evaluations for point in frontier.points] == [2, 3, 4]
    for point in frontier.points:
        plan = Plan.load(out / point.plan)
        assert plan.evaluations == point.evaluations
        assert plan.certificate is not None
        assert (plan.certificate.psnr, plan.certificate.drift) == (point.psnr, point.drift)
        assert point.plan in made.output
        assert f"{point.psnr:.2f}" in made.output
    assert sorted(path.name for path in out.iterdir()) == [
        "2.plan.json", "3.plan.json", "4.plan.json", "frontier.json",
    ]  # fmt: skip
    assert not list(tmp_path.glob("*.runs*"))


@pytest.mark.slow
@pytest.mark.parametrize("quality", [["--min-psnr", 20], ["--min-psnr", 18, "--psnr-of", "p5"]])
def test_the_fewest_evaluations_that_reach_a_psnr(command, tmp_path, quality):
    """All that were tried are stored; the one that was asked for is the file."""
    out = tmp_path / "flux.plan.json"
    made = run(*command, *quality, "--fast", "--json", "-o", out)
    assert made.exit_code == 0, made.output
    goal = QualityGoal.of(None, quality[1], *quality[3:])
    stored = {one.plan.evaluations: one.plan for one in PlanStore().plans()}
    plan = Plan.load(out)
    assert plan == goal.fewest(stored.values(), lambda tried: tried)
    fewer = stored.get(plan.evaluations - 1)
    assert plan.evaluations == 1 or not goal.promised_by(fewer.certificate)
    facts = json.loads(made.stdout)
    assert (facts["file"], facts["anchors"]) == (str(out), list(plan.anchors))
    assert len(facts["stored"]) == len(stored)
    assert not list(tmp_path.glob("*.runs*"))


@pytest.mark.slow
def test_as_near_as_some_steps_is_fitted_to_the_flow_and_then_generates(command, folder, tmp_path):
    made = run(*command, "--like-steps", 5, "--fast")
    assert made.exit_code == 0, made.output
    assert "at most" in made.stderr  # the cost, before
    chosen = min(
        (one for one in PlanStore().plans() if one.plan.certificate.equivalent_steps >= 5),
        key=lambda one: one.plan.evaluations,
    )
    assert f"In the plan store as {chosen.name}" in made.stdout
    drawn = run(
        "generate", folder / "flux", "--steps", 6, *SIZE, "--like-steps", 5, "--prompt", "a cat",
        "--json", "-o", tmp_path,
    )  # fmt: skip
    (output,) = json.loads(drawn.stdout)["outputs"]
    assert output["evaluations"] == chosen.plan.evaluations


@pytest.mark.slow
def test_a_speedup_is_one_budget_and_json_is_the_plan(command, tmp_path):
    out = tmp_path / "p.json"
    made = run(*command, "--speedup", 2.5, "--fast", "--json", "-o", out)
    assert made.exit_code == 0, made.output
    facts = json.loads(made.stdout)
    assert facts["file"] == str(out)
    assert len(facts["anchors"]) == 2  # 6 / 2.5 is 2.4
    assert facts["certificate"]["held_out"] == 1


@pytest.mark.slow
def test_it_searches_unless_told_otherwise(command, tmp_path):
    spent = []
    for extra in ([], ["--fast"], ["--max-evaluations", 100]):
        made = run(*command, "--evaluations", 3, "--json", *extra, "-o", tmp_path / "p.json")
        spent.append(json.loads(made.stdout)["certificate"]["evaluations_spent"])
    assert spent[0] > spent[1]
    assert spent[2] <= 100


@pytest.mark.slow
def test_seeds_and_count_make_the_samples(command, tmp_path):
    made = run(
        *command, "--evaluations", 3, "--fast", "--count", 2, "--seeds", "3,4,5", "--json",
        "-o", tmp_path / "p.json",
    )  # fmt: skip
    assert json.loads(made.stdout)["samples"] == 5  # one of six is held out


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_killed_it_goes_on_where_it_stopped(command, tmp_path, monkeypatch, home, named):
    from tacache.hosts.held_runs import HostSamples

    monkeypatch.setattr("tacache.fitting.full_runs.KEEP_EVERY", 2)
    out, one, done = tmp_path / "p.json", HostSamples._one, []

    def dying(self, k, x, step):
        done.append(step)
        if len(done) == 4 * 5:
            raise KeyboardInterrupt
        return one(self, k, x, step)

    monkeypatch.setattr(HostSamples, "_one", dying)
    options = ["--evaluations", 3, "--fast", *(["-o", out] if named else [])]
    kept = tmp_path if named else home / "fits"
    assert run(*command, *options).exit_code != 0
    assert not out.exists()
    assert not PlanStore().plans()
    assert len(list(kept.glob("*.runs"))) == 1
    first = len(done)
    assert run(*command, *options).exit_code == 0
    assert done[first] == 4
    assert not list(kept.glob("*.runs*"))
    assert PlanStore().plans()[0].plan.evaluations == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--evaluations", "3", "--speedup", "2"], "not evaluations and speedup"),
        (["--min-psnr", "30", "--speedup", "2"], "not speedup and min_psnr"),
        (["--min-psnr", "30", "--like-steps", "9"], "not like_steps and min_psnr"),
        (["--psnr-of", "p5"], "psnr_of goes with min_psnr"),
        (["--min-psnr", "30", "--psnr-of", "best"], "psnr_of is mean or p5"),
        (["--min-psnr", "30", "--target", "flow"], "leave target='flow' out"),
        (["--like-steps", "0"], "whole number of Euler steps from 1 on"),
        (["--evaluations", "three"], "whole numbers with commas"),
        (["--evaluations", ""], "whole numbers with commas"),
        (["--evaluations", "7"], "7 evaluations cannot be made"),
        (["--evaluations", "0"], "0 evaluations cannot be made"),
        (["--speedup", "0.5"], "--speedup is a number from 1 to 6"),
        (["--speedup", "nan"], "--speedup is a number from 1 to 6"),
        (["--evaluations", "3", "--count", "1"], "--count"),
        (["--evaluations", "3", "--history", "0"], "--history"),
        (["--evaluations", "3", "--history", "4"], "--history"),
        (["--evaluations", "3", "--max-evaluations", "20"], "max_evaluations=20 is too few"),
        (["--evaluations", "3", "--prompts", "/nowhere.txt"], "/nowhere.txt"),
        (["--evaluations", "3", "--call", "hieght=3"], "hieght"),
        (["--evaluation", "3"], "--evaluation"),
        (["--call", "num_inference_steps=few"], "a whole number from 1 to 10000, not 'few'"),
    ],
)
def test_wrong_options_are_one_line_and_exit_code_2(command, options, message, tmp_path):
    made = run(*command, *options, "-o", tmp_path / "out")
    assert made.exit_code == 2
    assert message in made.stderr
    assert made.stderr.strip().splitlines()[-1].startswith("tacache: ")
    assert "Traceback" not in made.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_multistep_solver_is_fitted(folder, tmp_path):
    out = tmp_path / "p.json"
    size = [*SIZE, "--frames", 5]
    made = run(
        "fit", folder / "wan", "--steps", 4, "--evaluations", 2, "--fast", "--count", 2, *size,
        "-o", out,
    )  # fmt: skip
    assert made.exit_code == 0, made.output
    assert Plan.load(out).origin.scheduler == "UniPCMultistepScheduler"
    assert "UniPCMultistepScheduler" in made.output


def test_where_plans_cannot_go_is_said_before_any_work(command, tmp_path):
    file = tmp_path / "f.plan.json"
    file.write_text("{}")
    several = run(*command, "--evaluations", "3,4", "-o", file)
    assert several.exit_code == 2
    assert "is a file, and a folder is needed" in several.stderr
    one = run(*command, "--evaluations", "3", "-o", tmp_path)
    assert one.exit_code == 2
    assert "is a folder: name a file" in one.stderr
    assert not list(tmp_path.parent.glob("*.runs*"))


@pytest.mark.slow
def test_a_quality_that_nothing_reaches_is_said_and_what_was_tried_is_kept(command, tmp_path):
    out = tmp_path / "p.plan.json"
    missed = run(*command, "--min-psnr", 500, "--fast", "-o", out)
    assert missed.exit_code == 2
    assert "up to 5 evaluations do not reach" in missed.stderr
    assert "Traceback" not in missed.output
    assert not out.exists()
    assert max(one.plan.evaluations for one in PlanStore().plans()) == 5
    assert not list(tmp_path.glob("*.runs*"))


@pytest.mark.slow
def test_a_fit_to_the_flow_says_its_cost_before_and_how_near_it_comes_after(command, tmp_path):
    out = tmp_path / "flow.plan.json"
    made = run(*command, "--evaluations", 4, "--fast", "--target", "flow", "-o", out)
    assert made.exit_code == 0, made.output
    nearness = Plan.load(out).certificate.nearness(4)
    # 4 samples of 6 and of 12 steps, and 3 and 12 of the one held out
    assert "the flow take at most 87 evaluations" in made.output
    for output in (made.output, run("show", out).output):
        assert nearness in output
    assert not list(tmp_path.glob("*.runs*"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--target", "truth"], "--target is run or flow"),
        (["--reference-steps", 200], "--reference-steps goes with --target flow or --like-steps"),
        (["--target", "flow", "--reference-steps", 6], "above the 6 steps"),
    ],
)
def test_a_wrong_target_is_one_line(command, options, reason):
    made = run(*command, "--evaluations", 3, *options)
    assert made.exit_code == 2
    assert reason in made.output


@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--evaluations", 17], 16),
        (["--evaluations", 17, "--fast"], 8),
        (["--evaluations", 17, "--target", "flow"], 8),
        (["--evaluations", 17, "--target", "flow", "--count", 5], 5),
        (["--min-psnr", 35], 16),
        (["--like-steps", 50], 8),
    ],
)
def test_as_many_prompts_as_the_evaluations_allow(options, count, monkeypatch, tmp_path):
    asked = []

    def stopped(model, load, texts, call, **work):
        asked.append(len(texts))
        raise TACacheError("enough was seen")

    monkeypatch.setattr("tacache.cli.named_models.fit_plans", stopped)
    made = run("fit", "tiny-flux", *options, "-o", tmp_path / "p.json")
    assert made.exit_code == 2
    assert asked == [count]


def test_eight_samples_are_within_what_a_fit_to_the_flow_may_spend():
    """The numbers of the help's example: 50 steps, 17 evaluations and the default limit."""
    runs = FunctionSamples(lambda x, t: x, torch.zeros(8, 2), time_grid(50), {})
    options = FitOptions(target="flow")
    check_budget(runs, 17, options, 2 * 17 + flow_cost(runs, options))
    twice = FunctionSamples(lambda x, t: x, torch.zeros(16, 2), time_grid(50), {})
    more = 4 * 17 + flow_cost(twice, options)
    with pytest.raises(PlanError, match="max_evaluations=3000 is too few"):
        check_budget(twice, 17, options, more)


@pytest.mark.parametrize(
    ("target", "samples", "steps", "evaluations"),
    [("run", 4, 50, 1000), ("run", 16, 50, 3000), ("run", 2, 100, 1000), ("flow", 8, 50, 3000)],
)
def test_few_samples_mean_a_short_fit(target, samples, steps, evaluations):
    options = SearchOptions(target=target).options([13], False, samples, steps)
    assert options.max_evaluations == options.limit == evaluations
    assert SearchOptions(most=500).options([13], True, samples, steps).limit == 500
    assert SearchOptions().options([13], True, 16, steps).limit == 1500


def test_a_quality_of_the_flow_may_spend_as_much_as_a_fit_to_it():
    near = SearchOptions().options([], False, 8, 50, QualityOptions(like_steps=50))
    assert near == SearchOptions(target="flow").options(
        [], False, 8, 50, QualityOptions(like_steps=50)
    )
    assert near.max_evaluations == 3000
