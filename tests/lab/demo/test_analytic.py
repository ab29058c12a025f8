import torch

from tacache import Plan, Profile
from tacache.lab.demo.analytic import SIZE, picture_flow, run_demo


def test_the_demo_calibrates_plans_and_compares(tmp_path):
    result = run_demo(tmp_path, steps=16, budgets=(8, 5), samples=4)
    assert Profile.load(result.profile).steps == 16
    assert Profile.load(result.profile).samples == 4
    assert [Plan.load(path).evaluations for path in result.plans] == [8, 5]
    assert [row.evaluations for row in result.rows] == [8, 5]
    assert [row.speedup for row in result.rows] == [2.0, 3.2]
    for row in result.rows:
        assert 0 < row.tasu < row.reuse
        assert row.fewer_steps > 0
    assert result.rows[0].tasu < result.rows[1].tasu
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "demo-5.plan.json",
        "demo-8.plan.json",
        "demo.profile.json",
    ]


def test_a_seed_gives_the_same_demo_again(tmp_path):
    first, again, other = (
        run_demo(tmp_path / name, steps=10, budgets=(5,), samples=2, seed=seed).rows
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again != other


def test_the_pictures_have_three_channels():
    assert picture_flow()(torch.randn(2, 3, SIZE, SIZE), 0.5).shape == (2, 3, SIZE, SIZE)
