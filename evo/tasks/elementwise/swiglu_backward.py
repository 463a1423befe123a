"""Gradient of the SwiGLU activation, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def swiglu_backward(dy: torch.Tensor, gate: torch.Tensor, up: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of silu(gate) · up with respect to gate and up, in at least float32."""
    wide = torch.promote_types(dy.dtype, torch.float32)
    g = gate.to(wide)
    sigmoid = torch.sigmoid(g)
    dgate = dy.to(wide) * up.to(wide) * sigmoid * (1 + g * (1 - sigmoid))
    return dgate.to(gate.dtype), (dy.to(wide) * g * sigmoid).to(up.dtype)


def _case(rows: int, columns: int, offset: int = 0) -> Case:
    plain = TensorSpec((rows, columns), "bfloat16")
    gate = TensorSpec((rows, columns), "bfloat16", scale=2.0, offset=offset)
    # Per element: three operations of the sigmoid, six of dgate, two of dup.
    return Case(f"{rows}x{columns}", (plain, gate, plain), 5 * plain.nbytes, 11 * plain.numel)


TASK = Task(
    name="swiglu_backward",
    description=(
        "Gradient of y = gate * sigmoid(gate) * up. dy, gate and up are contiguous bfloat16 matrices [rows, columns]. Returns "
        "the tuple (dgate, dup), new contiguous bfloat16 matrices of the same shape: with s = sigmoid(gate), dgate = dy * up * "
        "s * (1 + gate * (1 - s)) and dup = dy * gate * s. Compute in float32."
    ),
    entry="swiglu_backward",
    reference=swiglu_backward,
    training_cases=(
        _case(4096, 14336),  # Llama 3.1 8B
        _case(8192, 11008),  # Llama 2 7B
        _case(2048, 28672),  # Llama 3.1 70B
    ),
    held_out_cases=(_case(1, 11008), _case(513, 4097), _case(16384, 14336)),
    small_cases=(_case(3, 37, offset=1), _case(2, 1000), _case(1, 1)),
    starting_kernels=("../starts/swiglu_backward.py",),
    kind="elementwise",
)
