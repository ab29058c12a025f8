"""The benchmark's progress bar: it moves with every evaluation, on standard error only."""

from __future__ import annotations

from tacache_lab.bench.bars import Bar, bar


class _Progress:
    def __init__(self) -> None:
        self.updates: list[dict[str, object]] = []

    def update(self, task: object, **changes: object) -> None:
        self.updates.append(changes)


def test_evaluations_of_an_item_are_counted_anew():
    progress = _Progress()
    shown = Bar(progress, 0)
    shown.begin("magcache at 13")
    shown.tick()
    shown.tick()
    shown.advance()
    shown.begin("vde at 7")
    shown.tick()
    assert [one.get("now", one.get("advance")) for one in progress.updates] == [
        "magcache at 13",
        "magcache at 13: 1 evaluations",
        "magcache at 13: 2 evaluations",
        1,
        "vde at 7",
        "vde at 7: 1 evaluations",
    ]


def test_what_a_prompt_says_does_not_reach_the_terminal_raw():
    progress = _Progress()
    Bar(progress, 0).begin("a \x1b[2J fox")
    assert progress.updates == [{"now": "a \\x1b[2J fox"}]


def test_long_names_leave_room_for_the_bar():
    progress = _Progress()
    Bar(progress, 0).begin("a very long prompt " * 10)
    assert len(str(progress.updates[0]["now"])) <= 40


def test_it_is_shown_on_standard_error_where_asked(capsys):
    with bar("tuning", 2, show=True) as shown:
        shown.begin("[magcache]")
        shown.advance()
    printed = capsys.readouterr()
    assert "tuning" in printed.err
    assert "[magcache]" in printed.err
    assert not printed.out
    with bar("tuning", 2, show=False) as shown:
        shown.begin("vde")
        shown.tick()
    assert capsys.readouterr() == ("", "")
