"""What the nodes use of ComfyUI, in little: a stand-in, or the real code of a checkout.

The stand-in has the surface the nodes touch (samplers, guider, noise, previews, folders), written
for these tests. `COMFYUI_PATH=DIR` names a checkout with its packages; the same tests then run
on its code too.
"""

# ruff: noqa: D102

import importlib
import importlib.util
import os
import sys
import uuid
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
from torch import Tensor

ROOT = Path(__file__).parent.parent
SHAPE = (4, 4, 4)
CHECKOUT = os.environ.get("COMFYUI_PATH")


class InterruptProcessingException(Exception):  # noqa: N818 - ComfyUI's name
    """The user pressed cancel."""


class CONST:
    """Rectified flow: sigma is t."""

    def noise_scaling(self, sigma, noise, latent_image, max_denoise=False):
        return sigma * noise + (1.0 - sigma) * latent_image

    def inverse_noise_scaling(self, sigma, latent):
        return latent / (1.0 - sigma)

    def percent_to_sigma(self, percent):
        return 1.0 - percent


class EPS:
    """Noise prediction."""


class KSAMPLER:
    """A sampler function with its options."""

    def __init__(self, sampler_function, extra_options=None):
        self.sampler_function, self.extra_options = sampler_function, extra_options or {}

    def sample(self, model_wrap, sigmas, extra_args, callback, noise, latent_image, denoise_mask):
        extra_args["denoise_mask"] = denoise_mask
        masked = MaskedModel(model_wrap, sigmas, latent_image, noise)
        sampling = model_wrap.inner_model.model_sampling
        x = sampling.noise_scaling(sigmas[0], noise, latent_image)

        def k_callback(seen):
            callback(seen["i"], seen["denoised"], seen["x"], len(sigmas) - 1)

        x = self.sampler_function(
            masked,
            x,
            sigmas,
            extra_args=extra_args,
            callback=None if callback is None else k_callback,
            disable=True,
            **self.extra_options,
        )
        return sampling.inverse_noise_scaling(sigmas[-1], x)


class MaskedModel:
    """What a sampler function gets as its model: outside a mask the latent is known."""

    def __init__(self, guider, sigmas, latent_image, noise):
        self.inner_model, self.sigmas = guider, sigmas
        self.latent_image, self.noise = latent_image, noise

    def __call__(self, x, sigma, denoise_mask=None, model_options=None, seed=None):
        if denoise_mask is None:
            return self.inner_model._predict(x, sigma)
        if "denoise_mask_function" in model_options:
            about = {"model": self.inner_model, "sigmas": self.sigmas}
            change = model_options["denoise_mask_function"]
            denoise_mask = change(sigma, denoise_mask, extra_options=about)
        sampling = self.inner_model.inner_model.model_sampling
        level = sigma.reshape(-1, *[1] * (x.ndim - 1))
        known = sampling.noise_scaling(level, self.noise, self.latent_image)
        x = x * denoise_mask + known * (1 - denoise_mask)
        found = self.inner_model._predict(x, sigma)
        return found * denoise_mask + self.latent_image * (1 - denoise_mask)


class CONDCrossAttn:
    """A prompt as the network gets it."""

    def __init__(self, cond):
        self.cond = cond


class CFGGuider:
    """Guided velocities of a model."""

    def __init__(self, model_patcher):
        self.model_patcher, self.model_options = model_patcher, model_patcher.model_options
        self.cfg = 1.0

    def set_conds(self, positive, negative):
        self.original_conds = {"positive": positive, "negative": negative}

    def set_cfg(self, cfg):
        self.cfg = cfg

    def _predict(self, x, sigma):
        net, t = self.inner_model.diffusion_model, sigma * 1000
        positive = net(x, t, context=self._context("positive", float(sigma[0])))
        v = positive
        if self.cfg != 1.0:
            negative = net(x, t, context=self._context("negative", float(sigma[0])))
            v = negative + self.cfg * (positive - negative)
        return x - sigma.reshape(-1, *[1] * (x.ndim - 1)) * v

    def _context(self, name, sigma):
        def used(cond):
            start, end = cond.get("timestep_start", 1e9), cond.get("timestep_end", -1.0)
            return end <= sigma <= start

        return sum(cond["cross_attn"] for cond in self.conds[name] if used(cond))

    def _converted(self, conds):
        sampling, found = self.inner_model.model_sampling, []
        for tensor, options in conds:
            network = {"c_crossattn": CONDCrossAttn(tensor)}
            cond = {"cross_attn": tensor, "model_conds": network, "uuid": uuid.uuid4(), **options}
            for name in ("start", "end"):
                if f"{name}_percent" in options:
                    level = sampling.percent_to_sigma(options[f"{name}_percent"])
                    cond[f"timestep_{name}"] = level
            if "control" in cond:
                cond["control"].pre_run(self.inner_model, sampling.percent_to_sigma)
            found.append(cond)
        return found

    def sample(
        self,
        noise,
        latent_image,
        sampler,
        sigmas,
        denoise_mask=None,
        callback=None,
        disable_pbar=False,
        seed=None,
    ):
        self.inner_model = self.model_patcher.model
        self.conds = {name: self._converted(c) for name, c in self.original_conds.items()}
        options = options_of_a_run(self.model_options, sigmas)
        extra_args = {"model_options": options, "seed": seed}
        return sampler.sample(self, sigmas, extra_args, callback, noise, latent_image, denoise_mask)


def options_of_a_run(model_options, sigmas):
    """The options of a model as ComfyUI hands them to its sampler, empty dictionaries included."""
    hooked = {"wrappers": {}, "callbacks": {}}
    network = {**hooked, **model_options.get("transformer_options", {}), "sample_sigmas": sigmas}
    return {**model_options, "transformer_options": network, "to_load_options": {**hooked}}


def prepare_noise(latent_image, seed, noise_inds=None):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(latent_image.shape, generator=generator)


class ProgressBar:
    """Tells the user, and stops where the user said so."""

    hook = None

    def __init__(self, total):
        self.total, self.current = total, 0

    def update_absolute(self, value, total=None, preview=None):
        self.current = value
        if ProgressBar.hook is not None:
            ProgressBar.hook(value, total or self.total, preview)

    def update(self, value):
        self.update_absolute(self.current + value)


def prepare_callback(model, steps, x0_output_dict=None):
    bar = ProgressBar(steps)

    def callback(step, x0, x, total_steps):
        bar.update_absolute(step + 1, total_steps, x0)

    return callback


def _folders(models_dir: Path) -> ModuleType:
    folders = ModuleType("folder_paths")
    known: dict[str, list[str]] = {}

    def listed(name):
        files = (p for folder in known[name] for p in Path(folder).rglob("*") if p.is_file())
        return sorted(p.relative_to(known[name][0]).as_posix() for p in files)

    def full_path(name, file):
        path = Path(known[name][0]) / os.path.relpath(os.path.join("/", file), "/")
        return str(path) if path.is_file() else None

    folders.models_dir = str(models_dir)
    folders.add_model_folder_path = lambda name, path: known.setdefault(name, [path])
    folders.get_folder_paths = lambda name: known[name]
    folders.get_filename_list, folders.get_full_path = listed, full_path
    return folders


def stand_in_modules(models_dir: Path) -> dict[str, ModuleType]:
    """What goes into `sys.modules` in place of ComfyUI."""
    parts = {
        "samplers": {"KSAMPLER": KSAMPLER, "CFGGuider": CFGGuider},
        "sample": {
            "prepare_noise": prepare_noise,
            "fix_empty_latent_channels": lambda model, latent: latent,
        },
        "utils": {"ProgressBar": ProgressBar},
        "model_sampling": {"CONST": CONST},
        "model_management": {"load_models_gpu": lambda models: None},
    }
    modules = {"comfy": ModuleType("comfy"), "folder_paths": _folders(models_dir)}
    for name, contents in parts.items():
        module = ModuleType(f"comfy.{name}")
        vars(module).update(contents)
        setattr(modules["comfy"], name, module)
        modules[f"comfy.{name}"] = module
    modules["latent_preview"] = ModuleType("latent_preview")
    modules["latent_preview"].prepare_callback = prepare_callback
    return modules


class ToyNet(torch.nn.Module):
    """A flow with a known velocity as ComfyUI calls a network; the prompt pushes it aside."""

    flow = None

    def __init__(self, **_):
        super().__init__()
        self.dtype, self.calls = torch.float32, []

    def forward(self, x: Tensor, timestep: Tensor, context: Tensor | None = None, **_) -> Tensor:
        t = float(timestep[0]) / 1000
        self.calls.append((t, len(x)))
        push = 0.0 if context is None else context.mean(dim=tuple(range(1, context.ndim)))
        v = self.flow(x, t)
        return v + t * torch.as_tensor(push).reshape(-1, *[1] * (x.ndim - 1)).to(x)


class StandIn:
    """ComfyUI's surface as these tests use it."""

    name = "stand-in"
    interrupted = InterruptProcessingException

    def __init__(self, monkeypatch, models_dir: Path) -> None:
        for name, module in stand_in_modules(models_dir).items():
            monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(ProgressBar, "hook", None)
        self.monkeypatch, self.folder = monkeypatch, models_dir / "tacache"
        self.samplers = sys.modules["comfy.samplers"]
        self.package = load_nodes(monkeypatch)

    def on_progress(self, hook) -> None:
        """Have `hook(value, total, preview)` called as the user interface is."""
        ProgressBar.hook = hook

    def model(self, flow, sampling=CONST, net: type = ToyNet):
        inner = SimpleNamespace(
            model_sampling=sampling(),
            diffusion_model=net(),
            process_latent_out=lambda latent: latent,
        )
        inner.diffusion_model.flow = flow
        objects = {"model_sampling": inner.model_sampling}
        return SimpleNamespace(model=inner, model_options={}, get_model_object=objects.get)

    def other_sampling(self):
        return EPS


class Checkout(StandIn):
    """The real code."""

    name = "ComfyUI"

    def __init__(self, monkeypatch, models_dir: Path) -> None:
        monkeypatch.syspath_prepend(CHECKOUT)
        monkeypatch.setattr(sys, "argv", ["main.py"])
        import comfy.cli_args

        comfy.cli_args.args.cpu = True
        import comfy.model_base
        import comfy.model_management
        import comfy.samplers
        import comfy.utils
        import folder_paths

        monkeypatch.setattr(folder_paths, "models_dir", str(models_dir))
        monkeypatch.delitem(folder_paths.folder_names_and_paths, "tacache", raising=False)
        self.monkeypatch, self.folder, self.samplers = (
            monkeypatch,
            models_dir / "tacache",
            comfy.samplers,
        )
        self.interrupted = comfy.model_management.InterruptProcessingException
        self.on_progress(None)
        self.package = load_nodes(monkeypatch)

    def on_progress(self, hook) -> None:
        import comfy.utils

        def adapted(value, total, preview, node_id=None):
            hook(value, total, preview)

        self.monkeypatch.setattr(comfy.utils, "PROGRESS_BAR_HOOK", hook and adapted)

    def model(self, flow, sampling=None, net: type = ToyNet):
        import comfy.model_base
        import comfy.model_patcher
        import comfy.supported_models_base

        config = comfy.supported_models_base.BASE({})
        config.unet_config = {}
        kind = sampling or comfy.model_base.ModelType.FLOW
        inner = comfy.model_base.BaseModel(config, kind, unet_model=net)
        inner.diffusion_model.flow = flow
        inner.memory_required = lambda *_, **__: 0
        cpu = torch.device("cpu")
        return comfy.model_patcher.ModelPatcher(inner, load_device=cpu, offload_device=cpu)

    def other_sampling(self):
        import comfy.model_base

        return comfy.model_base.ModelType.EPS


def load_nodes(monkeypatch) -> ModuleType:
    """The folder `comfyui` as ComfyUI loads it: a package by its path, under a name of its own."""
    name = "custom_nodes_tacache"
    for known in [m for m in sys.modules if m.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, known)
    spec = importlib.util.spec_from_file_location(name, ROOT / "comfyui" / "__init__.py")
    package = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, package)
    spec.loader.exec_module(package)
    return package
