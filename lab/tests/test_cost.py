import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from tacache_lab.flops import count_flops

on_cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=on_cuda)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_flops_of_a_hand_counted_attention(device, mode):
    query = torch.rand(2, 3, 5, 8, device=device)
    key, value = torch.rand(2, 2, 3, 7, 8, device=device)
    with mode():
        found = count_flops(lambda: scaled_dot_product_attention(query, key, value))
    # scores: 2 x 3 x 5 x 7 sums of 8 products; values: 2 x 3 x 5 x 8 sums of 7 products
    assert found == 2 * (2 * 3 * 5 * 7 * 8) + 2 * (2 * 3 * 5 * 8 * 7)


def test_flops_of_masked_attention_are_those_of_all_scores():
    query = torch.rand(1, 2, 6, 4)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    found = count_flops(lambda: scaled_dot_product_attention(query, query, query, attn_mask=mask))
    assert found == 4 * (2 * 6 * 6 * 4)


@torch.no_grad()
def test_flops_of_a_hand_counted_transformer_layer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True).train()
    x = torch.rand(3, 10, 16)  # 30 tokens
    projections = 2 * 30 * 16 * (4 * 16)  # query, key, value, output
    attention = 4 * (3 * 2 * 10 * 10 * 8)
    feed_forward = 2 * 30 * 16 * 32 * 2
    assert count_flops(lambda: layer(x)) == projections + attention + feed_forward


def test_flops_of_a_convolution():
    convolution = nn.Conv2d(3, 5, 3, padding=1)
    x = torch.rand(1, 3, 8, 8)
    assert count_flops(lambda: convolution(x)) == 2 * (5 * 8 * 8) * (3 * 3 * 3)
