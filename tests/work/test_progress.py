import sys

from tacache.work.progress import counting, track


def test_without_a_bar_the_items_come_as_they_are(capsys):
    items = [1, 2]
    assert track(items, "working", show=False) is items
    assert capsys.readouterr() == ("", "")


def test_a_bar_goes_to_standard_error(capsys):
    assert list(track([1, 2, 3], "working", show=True)) == [1, 2, 3]
    out, err = capsys.readouterr()
    assert out == ""
    assert "working" in err
    assert "100%" in err


def test_rich_is_loaded_for_a_bar_only(monkeypatch):
    monkeypatch.setitem(sys.modules, "rich.progress", None)  # importing it would fail
    assert list(track([1], "working", show=False)) == [1]


def test_work_that_may_end_early_ends_its_bar(capsys):
    for number in track(range(10), "searching", show=True, at_most=True):
        if number == 2:
            break
    assert "100%" in capsys.readouterr().err
    for number in track(range(10), "working", show=True):
        if number == 2:
            break
    assert "100%" not in capsys.readouterr().err


def test_units_of_work_are_counted_and_the_bar_ends_full(capsys):
    with counting(100, "fitting", show=True) as done:
        done(30)
    err = capsys.readouterr().err
    assert "fitting" in err
    assert "100%" in err


def test_nothing_is_counted_without_a_bar(capsys):
    with counting(100, "fitting", show=False) as done:
        done(30)
    assert capsys.readouterr() == ("", "")
