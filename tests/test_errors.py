import pytest

import tacache
from tacache.errors import HostError, StorageError, named, printable


@pytest.mark.parametrize("name", ["ProfileError", "PlanError", "HostError"])
def test_one_except_clause_catches_every_error(name):
    error = getattr(tacache, name)
    assert issubclass(error, tacache.TACacheError)
    with pytest.raises(tacache.TACacheError, match="why"):
        raise error("why")


def test_the_base_error_is_no_builtin_in_disguise():
    # Inside a pydantic validator a ValueError would be swallowed into pydantic's own report.
    assert tacache.TACacheError.__bases__ == (Exception,)


@pytest.mark.parametrize("kind", [HostError, StorageError])
def test_a_message_that_quotes_a_file_is_safe_to_print(kind):
    error = kind("the plan was made for \x1b[2Jme\nand you")
    assert str(error) == "the plan was made for \\x1b[2Jme\nand you"


def test_a_file_that_cannot_be_written_is_one_of_ours_and_the_systems():
    assert issubclass(StorageError, tacache.TACacheError)
    assert issubclass(StorageError, OSError)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a red fox, é 狐 █", "a red fox, é 狐 █"),
        ("\x1b[2J\x07", r"\x1b[2J\x07"),
        ("a\nb\r\tc\0", r"a\nb\r\tc\x00"),
        ("left\u202eright\x9b", r"left\u202eright\x9b"),
    ],
)
def test_what_a_terminal_would_act_on_is_escaped(text, shown):
    assert printable(text) == shown


def test_what_fails_says_which_sample_it_was():
    with (
        pytest.raises(HostError, match=r"^a fox with seed 3: no memory") as caught,
        named("a fox with seed 3"),
    ):
        raise MemoryError("no memory")
    assert isinstance(caught.value.__cause__, MemoryError)
