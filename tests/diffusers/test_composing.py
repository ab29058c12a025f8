"""Plans on networks that are quantised or spread over processes (docs/how-to/composing.md).

LoRA, compilation, offloading and diffusers' own caches are tried in `test_applying`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.diffusers_support import EVALUATIONS, counted, in_two_processes, run
from tests.tiny import PIPELINES
from torch import nn

from tacache import Plan
from tacache.diffusers import accelerate, applied, remove
from tacache.diffusers.fingerprint import weights_of

FLUX = PIPELINES["flux"]
FP8 = torch.float8_e4m3fn
GGUF_BLOCK = 32  # numbers that share a scale in 8 bits


def cast_by_layer(pipe: Any, folder: Path) -> None:
    """Keep weights in 8 bits between the layers' turns, as diffusers does it."""
    pipe.transformer.enable_layerwise_casting(storage_dtype=FP8, compute_dtype=torch.float32)


def torchao(config: str) -> Callable[[Any, Path], None]:
    """Quantise weights in place by torchao."""

    def quantise(pipe: Any, folder: Path) -> None:
        kinds = pytest.importorskip("torchao.quantization")
        kinds.quantize_(pipe.transformer, getattr(kinds, config)())

    return quantise


def torchao_loaded(pipe: Any, folder: Path) -> None:
    """Load the saved network through diffusers' own quantiser."""
    kinds = pytest.importorskip("torchao.quantization")
    from diffusers import TorchAoConfig

    config = TorchAoConfig(kinds.Int8WeightOnlyConfig())
    pipe.transformer.save_pretrained(folder)
    pipe.transformer = type(pipe.transformer).from_pretrained(
        folder, quantization_config=config, torch_dtype=torch.float32
    )


def gguf(pipe: Any, folder: Path) -> None:
    """Write the network to a GGUF file of 8 bits, and load it through diffusers."""
    written = pytest.importorskip("gguf")
    from diffusers import GGUFQuantizationConfig

    kind, path = written.GGMLQuantizationType.Q8_0, str(folder / "flux.gguf")
    writer = written.GGUFWriter(path, "flux")
    for name, tensor in pipe.transformer.state_dict().items():
        values = tensor.numpy()
        if values.ndim == 2 and values.shape[1] % GGUF_BLOCK == 0:
            writer.add_tensor(name, written.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    pipe.transformer.save_config(folder)
    pipe.transformer = type(pipe.transformer).from_single_file(
        path,
        config=str(folder),
        quantization_config=GGUFQuantizationConfig(compute_dtype=torch.float32),
        torch_dtype=torch.float32,
    )


def nf4(pipe: Any, folder: Path) -> None:
    """Put the layers of bitsandbytes into the blocks: diffusers' quantiser wants a GPU."""
    layers = pytest.importorskip("bitsandbytes").nn
    blocks = (*pipe.transformer.transformer_blocks, *pipe.transformer.single_transformer_blocks)
    places = [(block, name) for block in blocks for name, _ in block.named_modules()]
    for block, name in places:
        plain = block.get_submodule(name)
        if type(plain) is nn.Linear:
            layer = layers.Linear4bit(
                plain.in_features,
                plain.out_features,
                bias=plain.bias is not None,
                compute_dtype=torch.float32,
                quant_type="nf4",
            )
            layer.load_state_dict(plain.state_dict())
            block.set_submodule(name, layer.to("cpu"))


QUANTISED = {
    "layerwise casting": cast_by_layer,
    "torchao int8": torchao("Int8WeightOnlyConfig"),
    "torchao int8, dynamic": torchao("Int8DynamicActivationInt8WeightConfig"),
    "torchao fp8": torchao("Float8WeightOnlyConfig"),
    "torchao int8, loaded": torchao_loaded,
    "gguf": gguf,
    "bitsandbytes nf4": nf4,
}


@pytest.fixture(params=QUANTISED)
def quantised(request, tmp_path) -> Any:
    """A tiny FLUX whose network is quantised in one of the ways."""
    pipe = FLUX.build()
    QUANTISED[request.param](pipe, tmp_path)
    return pipe


@pytest.mark.slow
def test_a_quantised_network_follows_plans_exactly(quantised):
    plain = run(FLUX, FLUX.build())
    untouched = run(FLUX, quantised)
    assert 0 < (untouched - plain).norm() < 0.1 * plain.norm()
    accelerate(quantised, evaluations=EVALUATIONS)
    with counted(quantised, FLUX.denoisers) as calls:
        skipping = run(FLUX, quantised)
    times = quantised.scheduler.run_plan.times
    remove(quantised)
    assert len(calls) == EVALUATIONS
    assert 0 < (skipping - untouched).norm() < 0.2 * untouched.norm()
    with applied(quantised, Plan.full(times)):
        assert torch.equal(run(FLUX, quantised), untouched)


@pytest.mark.slow
def test_a_quantised_network_learns_a_plan_of_its_own(quantised):
    """Its weights can be read, and are not those of the network it was made from."""
    assert weights_of(quantised) not in (None, weights_of(FLUX.build()))
    accelerate(quantised, evaluations=EVALUATIONS, learn=2)
    for seed in range(3):
        run(FLUX, quantised, generator=torch.Generator().manual_seed(seed))
    assert quantised.scheduler.run_plan.rule == "fitted"
    plain = FLUX.build()
    accelerate(plain, evaluations=EVALUATIONS)
    run(FLUX, plain)
    assert plain.scheduler.run_plan.rule == "linear"  # the stored plan is not for its weights


@pytest.mark.slow
def test_equal_weights_that_compute_otherwise_are_told_apart(tmp_path):
    """Both have the same numbers of 8 bits; one of them rounds what it multiplies, too."""
    pytest.importorskip("torchao")
    found = []
    for kind in ("torchao int8", "torchao int8, dynamic"):
        pipe = FLUX.build()
        QUANTISED[kind](pipe, tmp_path)
        found.append(weights_of(pipe))
    assert len(set(found)) == 2


SPREAD = """
import json, sys
from pathlib import Path
import torch
from diffusers import ContextParallelConfig
from tacache import Plan
from tacache.diffusers import accelerate, applied, remove
from tests.diffusers_support import EVALUATIONS, run
from tests.tiny import PIPELINES
from tests.tiny.counting import counted

torch.distributed.init_process_group("gloo")
torch.accelerator.device_count = lambda: 1  # diffusers divides by it, and here is none
flux = PIPELINES["flux"]
pipe = flux.build()
alone = run(flux, pipe)
pipe.transformer.enable_parallelism(config=ContextParallelConfig(ulysses_degree=2))
together = run(flux, pipe)
accelerate(pipe, evaluations=EVALUATIONS)
with counted(pipe, flux.denoisers) as calls:
    skipping = run(flux, pipe)
times = pipe.scheduler.run_plan.times
remove(pipe)
with applied(pipe, Plan.full(times)):
    full = run(flux, pipe)
answer = {
    "to one process": float((together - alone).norm() / alone.norm()),
    "skipping": float((skipping - together).norm() / alone.norm()),
    "calls": len(calls),
    "full": torch.equal(full, together),
}
Path(sys.argv[1], f"{torch.distributed.get_rank()}.json").write_text(json.dumps(answer))
torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_a_network_spread_over_two_processes_follows_plans_exactly(tmp_path):
    """Context parallel in the manner of Ulysses: each process has half of the tokens."""
    code, answers = in_two_processes(tmp_path, SPREAD)
    assert code == 0
    assert answers[0] == answers[1]
    assert answers[0]["to one process"] < 1e-5
    assert 0 < answers[0]["skipping"] < 0.2
    assert (answers[0]["calls"], answers[0]["full"]) == (EVALUATIONS, True)
