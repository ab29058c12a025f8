"""What is trained of a model: factors of low rank behave as a full change to W_0 + B A does."""

import torch
from safetensors.torch import load_file
from tests.tiny import PIPELINES
from torch import Tensor, nn
from training.low_rank import LowRankChange, best_factors, linear_layers


class Blocks(nn.Module):
    """One layer that is changed, between two that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.Linear(4, 5)
        self.transformer_blocks = nn.ModuleList([nn.Linear(5, 6)])
        self.after = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Pass through all three."""
        return self.after(self.transformer_blocks[0](self.before(x)).tanh())


def other_weights(model: nn.Module) -> dict[str, Tensor]:
    """Weights a random change away from the model's."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: weight + 0.1 * torch.randn(weight.shape, generator=generator)
        for name, weight in model.state_dict().items()
    }


def test_at_full_rank_the_factors_are_the_change_and_below_its_best_approximation():
    change = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(change)
    for rank in (2, 5):
        down, up = best_factors(change, rank)
        assert (down.shape, up.shape) == ((rank, 5), (6, rank))
        left = torch.linalg.matrix_norm(change - up @ down)
        torch.testing.assert_close(left, values[rank:].norm(), atol=1e-5, rtol=1e-5)


def test_layers_outside_the_blocks_stay_as_they_are():
    model = Blocks()
    first = {name: weight.clone() for name, weight in model.state_dict().items()}
    known = other_weights(model)
    LowRankChange(model, known, rank=5)
    name = "transformer_blocks.0.weight"
    assert list(linear_layers(model)) == ["transformer_blocks.0"]
    torch.testing.assert_close(model.state_dict()[name], known[name])
    for other in first.keys() - {name}:
        assert torch.equal(model.state_dict()[other], first[other])


def test_gradients_are_those_of_the_factors_themselves():
    torch.manual_seed(0)
    model, x = Blocks(), torch.randn(3, 4)
    change = LowRankChange(model, other_weights(model), rank=2)
    model(x).square().sum().backward()
    change.take_gradients()
    down, up = (factor.detach().clone().requires_grad_() for factor in change.trained)
    layer = model.transformer_blocks[0]
    hidden = model.before(x) @ (change.base["transformer_blocks.0"] + up @ down).T + layer.bias
    model.after(hidden.tanh()).square().sum().backward()
    for factor, expected in zip(change.trained, (down, up), strict=True):
        torch.testing.assert_close(factor.grad, expected.grad)


def test_diffusers_loads_the_file_and_fuses_it_to_the_same_weights(tmp_path):
    pipe, other = PIPELINES["flux"].build(), PIPELINES["flux"].build()
    change = LowRankChange(pipe.transformer, other_weights(pipe.transformer), rank=3)
    change.save(tmp_path / "pytorch_lora_weights.safetensors")
    assert len(load_file(tmp_path / "pytorch_lora_weights.safetensors")) == 2 * len(change.layers)
    before = other.transformer.state_dict()["transformer_blocks.0.attn.to_q.weight"].clone()
    other.load_lora_weights(tmp_path)
    other.fuse_lora()
    other.unload_lora_weights()
    fused = other.transformer.state_dict()
    assert not torch.equal(fused["transformer_blocks.0.attn.to_q.weight"], before)
    for name, weight in pipe.transformer.state_dict().items():
        torch.testing.assert_close(fused[name], weight, atol=1e-3, rtol=0)  # half precision
