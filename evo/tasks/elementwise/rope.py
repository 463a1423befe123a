"""Rotary position embedding of queries and keys, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def rope(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotates the pairs (i, i + dim / 2) of every head by the angle of its token, in at least float32."""
    wide = torch.promote_types(q.dtype, torch.float32)
    rotated = []
    for x in (q, k):
        first, second = x.to(wide).chunk(2, dim=-1)
        c, s = cos[:, None, :], sin[:, None, :]
        rotated.append(torch.cat([first * c - second * s, second * c + first * s], dim=-1).to(x.dtype))
    return rotated[0], rotated[1]


def _case(tokens: int, heads: int, kv_heads: int, dim: int) -> Case:
    q = TensorSpec((tokens, heads, dim), "bfloat16")
    k = TensorSpec((tokens, kv_heads, dim), "bfloat16")
    angles = TensorSpec((tokens, dim // 2), "float32", distribution="uniform", low=-1.0, high=1.0)
    # Per element: two products and a sum.
    return Case(
        f"{tokens}_h{heads}_k{kv_heads}_d{dim}",
        (q, k, angles, angles),
        2 * (q.nbytes + k.nbytes) + 2 * angles.nbytes,
        3 * (q.numel + k.numel),
    )


TASK = Task(
    name="rope",
    description=(
        "Rotary position embedding as in Llama. q [tokens, heads, dim] and k [tokens, kv_heads, dim] are contiguous bfloat16 "
        "tensors, cos and sin contiguous float32 matrices [tokens, dim / 2]; dim is a power of two. For each head x of a token,"
        " with a its first and b its second half: y = (a * cos - b * sin, b * cos + a * sin). Returns the tuple of rotated q "
        "and k, new contiguous bfloat16 tensors of the same shapes. Compute in float32; do not assume cos^2 + sin^2 = 1."
    ),
    entry="rope",
    reference=rope,
    training_cases=(
        _case(8192, 32, 8, 128),  # Llama 3.1 8B
        _case(4096, 64, 8, 128),  # Llama 3.1 70B
        _case(16384, 32, 8, 64),  # Llama 3.2 1B
    ),
    held_out_cases=(
        _case(1, 28, 4, 128),  # Qwen2.5 7B, one token
        _case(1001, 3, 1, 256),
        _case(16384, 64, 8, 128),
    ),
    small_cases=(_case(3, 3, 1, 16), _case(7, 2, 2, 4), _case(1, 5, 1, 2)),
    starting_kernels=("../starts/rope.py",),
    kind="elementwise",
)
