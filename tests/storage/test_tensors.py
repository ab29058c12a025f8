"""Files of tensors beside plain values."""

import pytest
import torch

from tacache.errors import StorageError
from tacache.storage.tensors import load_values, save_values


def test_what_was_saved_comes_back(tmp_path):
    values = {"x": torch.arange(3.0), "call": {"prompt": "a fox", "scale": 1.5, "none": None}}
    save_values(tmp_path / "deep" / "a", values)
    found = load_values(tmp_path / "deep" / "a")
    assert torch.equal(found["x"], values["x"])
    assert found["call"] == values["call"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a"]


def test_a_place_that_takes_no_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        save_values(tmp_path / "file" / "a", {"x": torch.zeros(1)})


def test_code_in_a_file_is_not_run(tmp_path):
    torch.save({"x": print}, tmp_path / "a")
    with pytest.raises(Exception, match="weights_only"):
        load_values(tmp_path / "a")
