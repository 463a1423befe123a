"""Causal depthwise convolution in one dimension with SiLU, as before the scan of Mamba, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def conv1d_causal(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """silu(bias + Σ_i weight[:, i] x[…, t − width + 1 + i]) per channel, in at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    width, length = weight.shape[1], x.shape[2]
    padded = torch.nn.functional.pad(x.to(wide), (width - 1, 0))
    total = bias.to(wide)[:, None].expand_as(x)
    for tap in range(width):
        total = total + weight[:, tap, None].to(wide) * padded[:, :, tap : tap + length]
    return torch.nn.functional.silu(total).to(x.dtype)


def _case(batch: int, channels: int, length: int, width: int = 4, offset: int = 0) -> Case:
    x = TensorSpec((batch, channels, length), "bfloat16", offset=offset)
    weight = TensorSpec((channels, width), "bfloat16", scale=0.5)
    bias = TensorSpec((channels,), "bfloat16", scale=0.5)
    # Per element: a multiply-add per tap, bias, and four operations of SiLU.
    return Case(
        f"b{batch}_c{channels}_s{length}_w{width}",
        (x, weight, bias),
        2 * x.nbytes + weight.nbytes + bias.nbytes,
        x.numel * (2 * width + 5),
    )


TASK = Task(
    name="conv1d_causal",
    description=(
        "Causal depthwise convolution with SiLU. x is contiguous bfloat16 [batch, channels, length], weight contiguous bfloat16"
        " [channels, width], bias bfloat16 [channels]. z[b, c, t] = bias[c] + sum over i of weight[c, i] * x[b, c, t - width + "
        "1 + i], where x is 0 before the first token; y = z * sigmoid(z). width is from 2 to 4. The result is a new contiguous "
        "bfloat16 tensor of x's shape. Compute in float32."
    ),
    entry="conv1d_causal",
    reference=conv1d_causal,
    training_cases=(
        _case(8, 1536, 2048),  # Mamba 130M
        _case(2, 5120, 2048),  # Mamba 2.8B
        _case(1, 8192, 8192),  # Falcon Mamba 7B
    ),
    held_out_cases=(_case(1, 1536, 64), _case(3, 333, 1023, 3), _case(4, 8192, 8192)),
    small_cases=(_case(2, 3, 7, offset=1), _case(1, 5, 130, 3), _case(3, 2, 1, 2)),
    starting_kernels=("../starts/conv1d_causal.py",),
    kind="convolution",
)
