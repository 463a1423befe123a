"""Gradient of an embedding table from tokens sorted by their id, in float32 from bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def embedding_backward(dy: torch.Tensor, order: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Sums the rows of dy that belong to each row of the table, in at least float32."""
    wide = torch.promote_types(dy.dtype, torch.float32)
    vocabulary = starts.shape[0] - 1
    ids = torch.repeat_interleave(torch.arange(vocabulary, device=dy.device), starts.diff())
    out = torch.zeros((vocabulary, dy.shape[1]), dtype=wide, device=dy.device)
    return out.index_add_(0, ids, dy[order].to(wide))


def _case(tokens: int, vocabulary: int, hidden: int) -> Case:
    dy = TensorSpec((tokens, hidden), "bfloat16")
    order = TensorSpec((tokens,), "int64", distribution="permutation", high=tokens)
    starts = TensorSpec((vocabulary + 1,), "int64", distribution="partition", high=tokens)
    return Case(
        f"{tokens}x{hidden}_v{vocabulary}",
        (dy, order, starts),
        dy.nbytes + order.nbytes + starts.nbytes + 4 * vocabulary * hidden,
        dy.numel,
    )


TASK = Task(
    name="embedding_backward",
    description=(
        "Gradient of an embedding table. dy is a contiguous bfloat16 matrix [tokens, hidden]; order is an int64 vector "
        "[tokens], the positions of tokens sorted by their id; starts is an ascending int64 vector [vocabulary + 1] from 0 to "
        "tokens: the tokens of id v are order[starts[v]:starts[v + 1]]. dweight[v] = sum of dy[t] over the tokens t of id v, "
        "zeros where there are none. The result is a new contiguous float32 matrix [vocabulary, hidden]. Accumulate in float32;"
        " equal calls must give equal bits, so no atomic additions of floats."
    ),
    entry="embedding_backward",
    reference=embedding_backward,
    training_cases=(
        _case(8192, 128256, 2048),  # Llama 3.2 1B
        _case(16384, 32000, 4096),  # Mistral 7B
        _case(16384, 50257, 768),  # GPT-2
    ),
    held_out_cases=(
        _case(64, 1000, 768),
        _case(4099, 5001, 1023),
        _case(32768, 128256, 2048),
    ),
    small_cases=(_case(5, 3, 7), _case(37, 50, 130), _case(70, 2, 16)),
    starting_kernels=("../starts/embedding_backward.py",),
    kind="reduction",
)
