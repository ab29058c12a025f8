"""The fingerprint of weights: what changes it, and what does not."""

import copy
import time

import pytest
import torch
from torch import Tensor, nn

from tacache.hosts.weights_hash import fingerprint


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4))
    made.register_buffer("cache", torch.rand(3), persistent=False)
    return made


def of(one: nn.Module, beside: object = None) -> str | None:
    return fingerprint({"transformer": one}, beside)


def test_equal_networks_have_one_fingerprint():
    assert of(network()) == of(network())
    assert len(of(network())) == 64


def test_other_weights_dtypes_names_and_facts_have_another():
    plain = of(network())
    assert of(network(1)) != plain
    assert of(network().half()) != plain
    assert fingerprint({"unet": network()}) != plain
    assert of(network(), ["guider"]) != plain
    assert fingerprint({"transformer": network(), "transformer_2": network(1)}) != plain


def test_a_change_of_any_tensor_is_noticed():
    plain = of(network())
    for i in range(len(list(network().parameters()))):
        changed = network()
        with torch.no_grad():
            list(changed.parameters())[i].mul_(1.01).add_(0.01)
        assert of(changed) != plain
    changed = network()
    changed[3].running_mean.add_(1)
    assert of(changed) != plain


def test_a_change_behind_the_version_counter_is_noticed():
    one = network()
    plain = of(one)
    one[0].weight.data += 0.5
    assert of(one) != plain


@pytest.mark.slow
def test_compilation_layout_and_what_is_not_saved_do_not_matter():
    one = network()
    plain = of(one)
    inside = copy.deepcopy(one)
    inside[0] = torch.compile(inside[0], backend="eager")
    assert of(inside) == plain
    assert of(copy.deepcopy(one).to(memory_format=torch.channels_last)) == plain
    one.cache.add_(1)
    assert of(one.eval().requires_grad_(False)) == plain


def test_weights_that_are_not_there_have_none():
    assert of(network().to("meta")) is None
    assert fingerprint({}) is None


def test_half_precisions_of_all_kinds_are_read():
    for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.int8):
        one = nn.Module()
        one.register_buffer("packed", torch.arange(40).to(dtype))
        other = copy.deepcopy(one)
        other.packed[0] = 3
        assert of(one) != of(other)


class Quantised(torch.Tensor):
    """A tensor of two others, as quantisation libraries have them."""

    @staticmethod
    def __new__(cls, packed, scale):
        """The outside of a tensor, with no memory of its own."""
        return torch.Tensor._make_wrapper_subclass(cls, packed.shape, dtype=torch.float32)

    def __init__(self, packed, scale):
        self.packed, self.scale = packed, scale

    def __tensor_flatten__(self):
        return ["packed", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].packed, args[0].scale)
        raise NotImplementedError(f"no {function} on quantised weights")


def test_quantised_weights_are_read_by_their_parts():
    def made(scale):
        one = nn.Module()
        packed = torch.arange(40, dtype=torch.int8)
        one.weight = nn.Parameter(Quantised(packed, torch.tensor([scale])), requires_grad=False)
        return one

    assert of(made(1.0)) == of(made(1.0))
    assert of(made(1.0)) != of(made(2.0))


@pytest.fixture
def adapted():
    peft = pytest.importorskip("peft")
    base = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    torch.manual_seed(0)
    for weight in base.parameters():
        nn.init.normal_(weight)
    plain = of(base)
    config = peft.LoraConfig(r=2, target_modules=["0", "1"], init_lora_weights=False)
    peft.inject_adapter_in_model(config, base, "style")
    return base, plain


def each_layer(one, change):
    for module in one.modules():
        if hasattr(module, "adapter_layer_names"):
            change(module)


@pytest.mark.slow
def test_adapters_and_their_scales_are_told_apart(adapted):
    one, plain = adapted
    with_style = of(one)
    assert with_style != plain
    each_layer(one, lambda layer: layer.set_scale("style", 0.5))
    assert of(one) not in (plain, with_style)
    each_layer(one, lambda layer: layer.set_scale("style", 1.0))
    assert of(one) == with_style


@pytest.mark.slow
def test_an_adapter_that_is_off_does_not_matter(adapted):
    one, plain = adapted
    each_layer(one, lambda layer: layer.enable_adapters(False))
    assert of(one) == plain


@pytest.mark.slow
def test_merged_adapters_are_noticed(adapted):
    one, plain = adapted
    with_style = of(one)
    each_layer(one, lambda layer: layer.merge())
    assert of(one) not in (plain, with_style)


def test_a_network_of_many_tensors_takes_well_below_a_second():
    many = nn.ModuleList(nn.Linear(64, 64) for _ in range(600))
    of(many)
    start = time.perf_counter()
    of(many)
    assert time.perf_counter() - start < 0.5


class PackedTensor(Tensor):
    """A quantised tensor in the manner of torchao: plain ones inside, and how they compute."""

    def __tensor_flatten__(self):
        return ["numbers"], {"rounds": self.rounds, "device": self.place}


def packed(rounds: bool, place: str) -> nn.Module:
    one = torch.zeros(8).as_subclass(PackedTensor)
    one.numbers, one.rounds, one.place = torch.arange(8), rounds, place
    made = nn.Module()
    made.register_buffer("weight", one)
    return made


def test_equal_numbers_that_compute_otherwise_have_another():
    assert of(packed(True, "cpu")) == of(packed(True, "cuda:0"))
    assert of(packed(True, "cpu")) != of(packed(False, "cpu"))
