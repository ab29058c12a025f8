"""Options that several commands share: --load, and the spellings it has taken the place of."""

import pytest

from tacache.cli.options import Load
from tacache.errors import TACacheError


def test_names_are_taken_with_hyphens_or_underscores():
    load = Load(["bagel-path=a", "bagel_path=b=c", "weights=w", "compile=false"])
    assert load.checked("bagel") == {"bagel_path": "b=c", "weights": "w", "compile": False}
    assert Load().checked("tiny-flux") == {}


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("dtyp=float16", "--load does not know 'dtyp': choose from dtype, device, .*bagel-path"),
        ("dtype", "--load takes NAME=VALUE, not 'dtype'"),
        ("=cpu", "--load takes NAME=VALUE, not '=cpu'"),
        ("compile=yes", "compile is true or false, not 'yes'"),
        ("weights=w", "bagel-path and weights go with the model bagel, not tiny-flux"),
    ],
)
def test_wrong_pairs_are_refused(pair, message):
    with pytest.raises(TACacheError, match=message):
        Load([pair]).checked("tiny-flux")


def test_old_spellings_work_and_say_the_new_one(capsys):
    load = Load(["device=cpu"], dtype="bfloat16", compile=True, bagel_path="my Bagel")
    asked = {"device": "cpu", "dtype": "bfloat16", "compile": True, "bagel_path": "my Bagel"}
    assert load.checked("bagel") == asked
    rest = "; the old spelling goes with the next version"
    new = ("dtype is now --load dtype=bfloat16", "compile is now --load compile=true",
           "bagel-path is now --load 'bagel-path=my Bagel'")  # fmt: skip
    assert capsys.readouterr().err.splitlines() == [f"--{one}{rest}" for one in new]


def test_the_new_spelling_comes_before_the_old_one(capsys):
    assert Load(["dtype=float16"], dtype="bfloat16").checked("x/y") == {"dtype": "float16"}
    assert "--load dtype=bfloat16" in capsys.readouterr().err
