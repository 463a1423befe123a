"""Running sums along the rows of a matrix, in float32."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def cumulative_sum(x: torch.Tensor) -> torch.Tensor:
    """Inclusive sums over the last dimension."""
    return torch.cumsum(x, dim=-1)


def _case(rows: int, columns: int, offset: int = 0) -> Case:
    x = TensorSpec((rows, columns), "float32", offset=offset)
    return Case(f"{rows}x{columns}", (x,), 2 * x.nbytes, x.numel)


TASK = Task(
    name="cumulative_sum",
    description=(
        "Inclusive cumulative sum over the last dimension of a contiguous float32 matrix x [rows, columns]: y[i, j] = sum of "
        "x[i, 0..j]. The result is a new contiguous float32 matrix of the same shape. Accumulate in float32."
    ),
    entry="cumulative_sum",
    reference=cumulative_sum,
    training_cases=(
        _case(4096, 4096),
        _case(256, 128256),  # probabilities of Llama 3.1's vocabulary, for top-p sampling of 256 sequences
        _case(65536, 256),  # log decays within the chunks of Mamba-2
    ),
    held_out_cases=(
        _case(1, 32000),  # top-p sampling of one sequence, Mistral 7B
        _case(1000, 1023),
        _case(8192, 16384),
    ),
    small_cases=(_case(3, 7, offset=1), _case(2, 2050), _case(5, 1)),
    starting_kernels=("../starts/cumulative_sum.py",),
    kind="scan",
)
