"""Gradient of a row-wise softmax, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def softmax_backward(dy: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """y (dy − Σ dy y), sums in at least float32."""
    wide = torch.promote_types(y.dtype, torch.float32)
    product = dy.to(wide) * y.to(wide)
    return (product - y.to(wide) * product.sum(dim=-1, keepdim=True)).to(y.dtype)


def _case(rows: int, columns: int, offset: int = 0) -> Case:
    dy = TensorSpec((rows, columns), "bfloat16", offset=offset)
    # Rows sum to about one, as those of a softmax do.
    y = TensorSpec((rows, columns), "bfloat16", distribution="uniform", low=0.0, high=2.0 / columns)
    # Per element: two products, a sum, a difference.
    return Case(f"{rows}x{columns}", (dy, y), 3 * y.nbytes, 4 * y.numel)


TASK = Task(
    name="softmax_backward",
    description=(
        "Gradient of a softmax over the last dimension. dy (the gradient of its result) and y (its result) are contiguous "
        "bfloat16 matrices [rows, columns]; dx = y * (dy - sum(dy * y)) per row. The result is a new contiguous bfloat16 matrix"
        " of the same shape. Compute in float32; do not assume that rows of y sum to one."
    ),
    entry="softmax_backward",
    reference=softmax_backward,
    training_cases=(
        _case(16384, 1024),  # attention rows of GPT-2: 16 heads of 1024 queries
        _case(4096, 4096),
        _case(2048, 16384),  # long-context attention rows
    ),
    held_out_cases=(_case(33, 513), _case(4095, 2047), _case(8192, 8192)),
    small_cases=(_case(3, 7, offset=1), _case(5, 130), _case(2, 1000)),
    starting_kernels=("../starts/softmax_backward.py",),
    kind="reduction",
)
