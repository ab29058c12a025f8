"""Records beside the same ones made again."""

import sys

import pytest
from benchmarks import recomputed as study
from tests.report_support import fidelity, record


def ours(psnr=30.0, noise="a", **changes):
    compared = fidelity(psnr).model_copy(update={"metrics": {"psnr": psnr}})
    return record("fewer", 13, "a fox", to_full=compared, noise_sha256=noise, **changes)


def test_a_record_holds_within_a_hundredth_of_a_decibel():
    (row,) = study.recomputed([ours()], [ours(30.009)])
    assert row.holds
    assert row.difference == pytest.approx(0.009)
    (row,) = study.recomputed([ours()], [ours(29.98)])
    assert not row.holds
    assert (row.same_noise, row.same_settings, row.samples) == (True, True, 1)


def test_another_noise_is_told_whatever_the_decibels_are():
    (row,) = study.recomputed([ours()], [ours(noise="b")])
    assert (row.same_noise, row.holds) == (False, False)


def test_what_only_one_file_has_is_left_out():
    other = record("ab2", 13, "a fox", to_full=fidelity(20.0))
    failed = ours().model_copy(update={"status": "failed", "reason": "x", "prompt": "a boat"})
    rows = list(study.recomputed([ours(), other, failed], [ours(), failed]))
    assert [row.method for row in rows] == ["fewer"]


@pytest.mark.parametrize(("psnr", "code"), [(30.0, 0), (31.0, 1)])
def test_the_exit_status_says_whether_all_hold(tmp_path, monkeypatch, capsys, psnr, code):
    files = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for file, line in zip(files, (ours(), ours(psnr)), strict=True):
        file.write_text(line.to_line(), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["recomputed", *map(str, files)])
    with pytest.raises(SystemExit) as end:
        study.main()
    assert end.value.code == code
    assert (
        f"| fewer | 13 | 1 | the same | the same | {psnr - 30:.3f} dB |" in capsys.readouterr().out
    )
