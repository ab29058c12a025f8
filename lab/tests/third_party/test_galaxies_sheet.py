"""The picture of galaxies, from records of a small model in the place of theirs."""

import numpy as np
import pytest
from benchmarks import others
from tests.support import mixture

from tacache_lab.bench import BenchJob, run_bench
from tacache_lab.third_party import MODELS, VelocityHost
from tacache_lab.third_party.velocity_host import ThirdPartyModel

SIDE = 4


@pytest.mark.slow
def test_the_sheet_has_the_flow_both_methods_and_what_is_lost(tmp_path, monkeypatch):
    from tacache.grid import time_grid

    def picture(x):
        grey = (x[0, 0] / 8 + 0.5).clamp(0, 1).float().numpy()
        return np.repeat(grey[:, :, None], 3, axis=2)

    small = ThirdPartyModel(
        name="small",
        package="none==1",
        shape=(1, SIDE, SIDE),
        times=lambda steps: tuple(0.99 * t for t in time_grid(steps)),
        load=lambda: mixture((1, SIDE, SIDE)),
        picture=picture,
    )
    monkeypatch.setitem(MODELS, "small", small)
    monkeypatch.setattr(others, "EVALUATIONS", 4)
    monkeypatch.setattr(others, "FLOW_STEPS", 40)
    job = BenchJob(
        methods=["fitted-flow", "fewer"],
        evaluations=[4],
        prompts=["sample 1", "sample 2"],
        calibration=[f"calibration sample {i}" for i in range(1, 5)],
        call={"steps": 12},
        metrics=("psnr",),
        reference="flow",
        fine=40,
        tries=2,
    )
    records = run_bench(VelocityHost(small), job, tmp_path / "r.jsonl")
    assert {record.status for record in records} == {"done"}
    pixels = others.sheet(records, "small")
    assert pixels.shape == (5 * SIDE, 2 * SIDE, 3)
    flow, ours, plain, lost, lost_by_plain = np.split(pixels.astype(int), 5)
    assert np.abs(ours - flow).mean() < np.abs(plain - flow).mean()
    assert lost.mean() < lost_by_plain.mean()
    gap = np.minimum(8 * np.abs(plain - flow), 255)
    assert np.abs(lost_by_plain - gap).max() <= 8  # the pictures are rounded, differences are not
