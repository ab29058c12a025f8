"""The list of slow tests: who is on it, and how it is renewed."""

import pytest

from tests import slow


def test_every_line_names_a_test():
    gone = [name for name in sorted(slow.listed()) if not slow.is_there(name)]
    assert not gone, "python -m tests.slow drops what is gone"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tests/training/test_data.py::test_one[a-b]", True),
        ("tests/cli/test_a.py::test_one", True),
        ("tests/cli/test_b.py::test_long[3]", True),
        ("tests/cli/test_b.py::test_longer", False),
        ("tests/test_plan.py::test_long", False),
    ],
)
def test_a_line_is_a_folder_a_file_or_a_function(name, expected):
    names = ["training/", "cli/test_a.py", "cli/test_b.py::test_long"]
    assert slow.is_slow(name, names) is expected


def test_a_measurement_renews_what_it_measured():
    log = """
0.70s call     tests/test_slow.py::test_slow_tests_are_marked[1]
0.20s setup    tests/test_slow.py::test_slow_tests_are_marked[1]
0.40s call     tests/test_slow.py::test_slow_tests_are_marked[2]
0.10s call     tests/test_slow.py::test_every_line_names_a_test
9.00s call     tests/training/test_data.py::test_long
"""
    seconds = slow.measured(log)
    long, quick, kept = (
        f"test_slow.py::{function.__name__}"
        for function in (
            test_slow_tests_are_marked,
            test_every_line_names_a_test,
            test_a_measurement_renews_what_it_measured,
        )
    )
    assert seconds[long] == pytest.approx(1.3)
    known = ["training/", quick, kept, "test_slow.py::test_gone"]
    assert slow.renewed(known, seconds) == [kept, long, "training/"]


def test_slow_tests_are_marked(request):
    marked = {item.nodeid for item in request.session.items if item.get_closest_marker("slow")}
    assert {item.nodeid for item in request.session.items if slow.is_slow(item.nodeid)} <= marked
