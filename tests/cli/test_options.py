"""Options that several commands share: --load."""

import pytest

from tacache.cli.options import LoadOptions
from tacache.errors import TACacheError


def test_names_are_taken_with_hyphens_or_underscores():
    load = LoadOptions(["bagel-path=a", "bagel_path=b=c", "weights=w", "compile=false"])
    assert load.checked("bagel") == {"bagel_path": "b=c", "weights": "w", "compile": False}
    assert LoadOptions().checked("tiny-flux") == {}


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
        LoadOptions([pair]).checked("tiny-flux")
