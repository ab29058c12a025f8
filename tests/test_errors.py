import pytest

import tacache
from tacache.errors import HostError, named


@pytest.mark.parametrize("name", ["ProfileError", "PlanError", "HostError"])
def test_one_except_clause_catches_every_error(name):
    error = getattr(tacache, name)
    assert issubclass(error, tacache.TACacheError)
    with pytest.raises(tacache.TACacheError, match="why"):
        raise error("why")


def test_the_base_error_is_no_builtin_in_disguise():
    # Inside a pydantic validator a ValueError would be swallowed into pydantic's own report.
    assert tacache.TACacheError.__bases__ == (Exception,)


def test_what_fails_says_which_sample_it_was():
    with (
        pytest.raises(HostError, match=r"^a fox with seed 3: no memory") as caught,
        named("a fox with seed 3"),
    ):
        raise MemoryError("no memory")
    assert isinstance(caught.value.__cause__, MemoryError)
