"""Loading BAGEL from a checkout and a folder of weights, and what may be wrong with them."""

import importlib
import shutil
import sys
import types

import pytest
import torch
from safetensors.torch import save_file
from tests import bagel_real, bagel_stand_in
from tests.bagel_stand_in import CALL, no_checkout_loaded, write_checkout, write_weights

from tacache.bagel import calibrate, load_inferencer
from tacache.bagel.loading import import_checkout
from tacache.errors import HostError


@pytest.fixture(autouse=True)
def _free_names():
    with no_checkout_loaded():
        yield


@pytest.fixture
def checkout(tmp_path):
    return write_checkout(tmp_path / "Bagel")


@pytest.fixture
def weights(tmp_path):
    return write_weights(tmp_path / "BAGEL-tiny")


def picture(inferencer):
    torch.manual_seed(0)
    return list(inferencer(text="a red fox", **CALL)["image"].tobytes())


@pytest.mark.slow
@pytest.mark.parametrize("device", [None, "cpu", "auto"])
def test_the_loaded_inferencer_is_the_one_that_was_saved(checkout, weights, device):
    before = list(sys.path)
    inferencer = load_inferencer(checkout, weights, device=device, dtype="float32")
    assert sys.path == before
    saved = bagel_stand_in.inferencer()
    saved.autocast = "cpu"  # a loaded one is cast on every device
    assert picture(inferencer) == picture(saved)
    model = inferencer.model
    assert not model.training
    assert model.config._name_or_path == "BAGEL-tiny"
    assert len(model.vit_model.layers) == 1  # BAGEL leaves the last one out
    assert inferencer.vae_transform.sizes == (1024, 512, 16)
    assert inferencer.vit_transform.sizes == (980, 224, 14)


@pytest.mark.slow
def test_on_a_cpu_it_runs_under_an_autocast_that_its_own_code_opens_on_cuda_alone(
    checkout, weights
):
    inferencer = load_inferencer(checkout, weights, device="cpu")
    layer = inferencer.model.language_model.model.layers[1]
    # as BAGEL's attention does, whose output then meets weights of float32
    layer.register_forward_pre_hook(lambda _, given: (given[0].to(torch.bfloat16), given[1]))
    assert picture(inferencer)
    assert calibrate(inferencer, ["a red fox"], **CALL).origin.dtype == "bfloat16"


@pytest.mark.slow
def test_the_dtype_is_the_one_asked_for(checkout, weights):
    inferencer = load_inferencer(checkout, weights, dtype="bfloat16")
    assert inferencer.model.vae2llm.weight.dtype == torch.bfloat16
    with pytest.raises(HostError, match="unknown dtype 'int8': choose from float32"):
        load_inferencer(checkout, weights, dtype="int8")


def test_missing_folders_and_files_are_named(checkout, weights, tmp_path):
    with pytest.raises(HostError, match=r"there is no folder .*nowhere"):
        load_inferencer(tmp_path / "nowhere", weights)
    with pytest.raises(HostError, match=r"there is no folder .*nothing"):
        load_inferencer(checkout, tmp_path / "nothing")
    with pytest.raises(HostError, match=r"is no BAGEL checkout: git clone .*inferencer.py is"):
        load_inferencer(weights, weights)
    (weights / "ema.safetensors").unlink()
    with pytest.raises(HostError, match=r"no folder of BAGEL's weights.*ema.safetensors is miss"):
        load_inferencer(checkout, weights)


@pytest.mark.slow
def test_weights_of_something_else_are_refused(checkout, weights):
    save_file({"lm_head.weight": torch.zeros(2)}, weights / "ema.safetensors")
    with pytest.raises(HostError, match=r"cannot load BAGEL from .*BAGEL-tiny: "):
        load_inferencer(checkout, weights)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("from flash_attn import flash_attn_varlen_func", "BAGEL needs flash_attn: pip install fl"),
        ("import no_such_package.part", r"BAGEL needs no_such_package: pip install -r .*require"),
        ("from torch import no_such_name", r"no_such_name.*works with transformers 4.49 to 4.57"),
        ("raise RuntimeError('too new')", r"cannot import BAGEL from .*: too new; it works with"),
    ],
)
def test_what_an_import_lacks_is_said_and_nothing_stays_loaded(
    checkout, weights, line, message, monkeypatch
):
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_NoFlash(), *sys.meta_path])
    source = checkout / "modeling/autoencoder.py"
    good = source.read_text()
    source.write_text(f"{line}\n")
    before = list(sys.path)
    with pytest.raises(HostError, match=message):
        load_inferencer(checkout, weights)
    assert sys.path == before
    assert "modeling" not in sys.modules
    source.write_text(good)
    shutil.rmtree(checkout / "modeling/__pycache__", ignore_errors=True)
    importlib.invalidate_caches()
    load_inferencer(checkout, weights)


class _NoFlash:
    """Flash attention is not installed, wherever the test runs."""

    def find_spec(self, name, path=None, target=None):
        if name == "flash_attn":
            raise ModuleNotFoundError("No module named 'flash_attn'", name="flash_attn")


def test_without_transformers_the_error_says_none(checkout, weights, monkeypatch):
    (checkout / "modeling/autoencoder.py").write_text("raise ImportError('no tokenizer')\n")
    monkeypatch.setattr("tacache.bagel.loading.version", _not_installed)
    with pytest.raises(HostError, match="here is none"):
        load_inferencer(checkout, weights)


def _not_installed(name):
    raise importlib.metadata.PackageNotFoundError(name)


def test_a_module_of_the_same_name_is_not_taken_for_bagels(checkout, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "data", types.ModuleType("data"))
    with pytest.raises(HostError, match="a module 'data' that is not BAGEL's"):
        import_checkout(checkout)
    del sys.modules["data"]
    assert import_checkout(checkout).keys() >= {"inferencer", "modeling.bagel"}
    with pytest.raises(HostError, match="or another checkout"):
        import_checkout(write_checkout(tmp_path / "another"))


@bagel_real.needs_checkout
@pytest.mark.filterwarnings("ignore:.*Disabling autocast:UserWarning")
def test_the_real_checkout_loads_tiny_weights(tmp_path, monkeypatch):
    folder = bagel_real.write_weights(tmp_path / "tiny", monkeypatch)
    inferencer = load_inferencer(str(bagel_real.PATH), folder, dtype="float32", device="cpu")
    assert type(inferencer).__module__ == "inferencer"
    picture = inferencer(text="a red fox", **CALL | {"num_timesteps": 4})["image"]
    profile = calibrate(inferencer, ["a red fox"], **CALL)
    assert picture.size == (32, 32)
    assert profile.steps == 12
    assert profile.origin.model == "tiny"
