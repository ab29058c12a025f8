"""BAGEL from a user's checkout and weights; nothing of it ships with this package."""

import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tacache.bagel.runs import device_of
from tacache.errors import HostError

CHECKOUT = "https://github.com/ByteDance-Seed/Bagel"
MODULES = (
    "modeling.bagel",
    "modeling.qwen2",
    "modeling.autoencoder",
    "data.data_utils",
    "data.transforms",
    "inferencer",
)
SOURCES = ("inferencer.py", "modeling/bagel/bagel.py", "data/transforms.py")
WEIGHTS = ("llm_config.json", "vit_config.json", "ae.safetensors", "ema.safetensors", "vocab.json")
DTYPES = ("float32", "bfloat16", "float16")
LAYER = "Qwen2MoTDecoderLayer"
MAX_LATENT_SIDE = 64  # tokens
VIT_SIDE = 70  # patches
# (longest side, shortest side, stride) of pictures for the autoencoder and for the vision encoder
VAE_PICTURES, VIT_PICTURES = (1024, 512, 16), (980, 224, 14)
# small modules that exchange tensors outside of any hook, and so share a device
TOGETHER = (
    "language_model.model.embed_tokens",
    "time_embedder",
    "latent_pos_embed",
    "vae2llm",
    "llm2vae",
    "connector",
    "vit_pos_embed",
)


def load_inferencer(
    path: str | Path, weights: str | Path, *, dtype: str | None = None, device: str | None = None
) -> Any:
    """Load the InterleaveInferencer of a BAGEL checkout with the weights of a folder.

    `device="auto"` spreads the model over all GPUs and the CPU; otherwise it lies on one device.

    Args:
        path: The checkout of BAGEL.
        weights: The folder of its weights.
        dtype: "float32", "bfloat16" or "float16"; bfloat16 on a GPU where none is given.
        device: A device, or "auto" for all of them.

    Returns:
        The inferencer.

    Raises:
        HostError: A folder or a package is missing, or a module of the same name is loaded.

    """
    code, folder = Path(path).expanduser(), Path(weights).expanduser()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    device = "cuda:0" if device == "cuda" else device  # accelerate wants a number
    dtype = dtype or ("float32" if device == "cpu" else "bfloat16")
    if dtype not in DTYPES:
        raise HostError(f"unknown dtype {dtype!r}: choose from {', '.join(DTYPES)}")
    _check_files(code, SOURCES, f"no BAGEL checkout: git clone {CHECKOUT} and give its folder")
    _check_files(folder, WEIGHTS, "no folder of BAGEL's weights, such as BAGEL-7B-MoT")
    parts = import_checkout(code)
    try:
        return with_autocast(_assembled(parts, folder, getattr(torch, dtype), device))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise HostError(f"cannot load BAGEL from {folder}: {reason}") from error


def with_autocast(inferencer: Any) -> Any:
    """Give the inferencer on a CPU the autocast that its own code opens on CUDA alone.

    BAGEL casts to bfloat16 before its attention and counts on an autocast to go on from there.
    """
    if device_of(inferencer.model).type != "cuda":
        plain = inferencer.interleave_inference

        @functools.wraps(plain)
        def interleave_inference(*args: Any, **call: Any) -> Any:
            with torch.autocast("cpu", torch.bfloat16):
                return plain(*args, **call)

        inferencer.interleave_inference = interleave_inference
    return inferencer


def import_checkout(path: Path) -> dict[str, Any]:
    """Import the checkout's modules; its folder is on the import path only meanwhile."""
    _check_not_foreign(path)
    with _importable(path):
        try:
            return {name: importlib.import_module(name) for name in MODULES}
        except ModuleNotFoundError as error:
            raise HostError(_missing(str(error.name), path)) from error
        except (ImportError, AttributeError, RuntimeError) as error:
            raise HostError(
                f"cannot import BAGEL from {path}: {error}; it works with transformers 4.49 to "
                f"4.57, here is {_transformers()}"
            ) from error


def _missing(module: str, path: Path) -> str:
    package = module.partition(".")[0]
    if package == "flash_attn":
        return "BAGEL needs flash_attn: pip install flash-attn --no-build-isolation (on a GPU)"
    return f"BAGEL needs {package}: pip install -r {path / 'requirements.txt'}"


def _transformers() -> str:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return "none"


def _assembled(parts: dict[str, Any], folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Assemble all parts of the model around its weights."""
    bagel, data = parts["modeling.bagel"], parts["data.data_utils"]
    vae, vae_config = parts["modeling.autoencoder"].load_ae(str(folder / "ae.safetensors"))
    llm_config = bagel.Qwen2Config.from_json_file(str(folder / "llm_config.json"))
    llm_config.qk_norm, llm_config.tie_word_embeddings = True, False
    llm_config.layer_module = LAYER
    vit_config = bagel.SiglipVisionConfig.from_json_file(str(folder / "vit_config.json"))
    vit_config.rope = False
    vit_config.num_hidden_layers -= 1  # BAGEL reads the last but one
    config = bagel.BagelConfig(
        visual_gen=True,
        visual_und=True,
        llm_config=llm_config,
        vit_config=vit_config,
        vae_config=vae_config,
        vit_max_num_patch_per_side=VIT_SIDE,
        connector_act="gelu_pytorch_tanh",
        latent_patch_size=2,
        max_latent_size=MAX_LATENT_SIDE,
    )
    model = _with_weights(bagel, config, folder, dtype, device)
    tokenizer = parts["modeling.qwen2"].Qwen2Tokenizer.from_pretrained(str(folder))
    tokenizer, new_token_ids, _ = data.add_special_tokens(tokenizer)
    transform = parts["data.transforms"].ImageTransform
    return parts["inferencer"].InterleaveInferencer(
        model=model,
        vae_model=_hooked(vae.eval(), model),
        tokenizer=tokenizer,
        vae_transform=transform(*VAE_PICTURES),
        vit_transform=transform(*VIT_PICTURES),
        new_token_ids=new_token_ids,
    )


def _with_weights(bagel: Any, config: Any, folder: Path, dtype: torch.dtype, device: str) -> Any:
    """Load the model on its device, with hooks that bring inputs there."""
    accelerate = _accelerate()
    with accelerate.init_empty_weights():
        language_model = bagel.Qwen2ForCausalLM(config.llm_config)
        vit_model = bagel.SiglipVisionModel(config.vit_config)
        model = bagel.Bagel(language_model, vit_model, config)
        embeddings = model.vit_model.vision_model.embeddings
        embeddings.convert_conv2d_to_linear(config.vit_config, meta=True)
    loaded = accelerate.load_checkpoint_and_dispatch(
        model,
        checkpoint=str(folder / "ema.safetensors"),
        device_map=_device_map(model, dtype) if device == "auto" else {"": device},
        dtype=dtype,
        force_hooks=True,
    ).eval()
    loaded.config._name_or_path = folder.resolve().name  # what profiles and plans call it
    return loaded


def _device_map(model: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Place layers over all devices, what belongs together on the first."""
    devices: dict[str, Any] = _accelerate().infer_auto_device_map(
        model, no_split_module_classes=[LAYER], dtype=dtype
    )
    first = devices.get(TOGETHER[0], next(iter(devices.values())))
    return {name: first if name in TOGETHER else place for name, place in devices.items()}


def _hooked(vae: Any, model: Any) -> Any:
    """Put the autoencoder where the model's first weights lie, and its inputs too."""
    return _accelerate().dispatch_model(vae, {"": device_of(model)}, force_hooks=True)


def _accelerate() -> Any:
    try:
        return importlib.import_module("accelerate")
    except ModuleNotFoundError as error:
        raise HostError("BAGEL is loaded with accelerate: pip install accelerate") from error


def _check_files(folder: Path, names: tuple[str, ...], what: str) -> None:
    if not folder.is_dir():
        raise HostError(f"there is no folder {folder}")
    for name in names:
        if not (folder / name).is_file():
            raise HostError(f"{folder} is {what} ({name} is missing)")


def _check_not_foreign(path: Path) -> None:
    """Refuse to import where another module already has one of BAGEL's common names."""
    for name in sorted({module.partition(".")[0] for module in MODULES}):
        loaded = sys.modules.get(name)
        if loaded is not None and not _lies_in(loaded, path):
            raise HostError(
                f"a module {name!r} that is not BAGEL's is already loaded (or another checkout "
                "is): start a new process for this one"
            )


def _lies_in(module: Any, path: Path) -> bool:
    places = [*getattr(module, "__path__", []), getattr(module, "__file__", None)]
    return any(place and Path(place).resolve().is_relative_to(path.resolve()) for place in places)


@contextmanager
def _importable(path: Path) -> Iterator[None]:
    """Put `path` on the import path; where the import fails, nothing of it stays loaded."""
    before, home = set(sys.modules), str(path.resolve())
    sys.path.insert(0, home)
    try:
        yield
    except BaseException:
        for name in set(sys.modules) - before:
            if _lies_in(sys.modules[name], path):
                del sys.modules[name]
        raise
    finally:
        sys.path.remove(home)
