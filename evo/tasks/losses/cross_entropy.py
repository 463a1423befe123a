"""Cross-entropy per token over a large vocabulary, forward, from bfloat16 logits."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """log Σ exp(logits) − logits[label] per row, in at least float32."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return torch.nn.functional.cross_entropy(wide, labels, reduction="none")


def _case(tokens: int, vocabulary: int, offset: int = 0) -> Case:
    logits = TensorSpec((tokens, vocabulary), "bfloat16", scale=2.0, offset=offset)
    labels = TensorSpec((tokens,), "int64", distribution="integers", high=vocabulary)
    # Per element: maximum, difference, exponential, sum.
    return Case(f"{tokens}x{vocabulary}", (logits, labels), logits.nbytes + labels.nbytes + 4 * tokens, 4 * logits.numel)


TASK = Task(
    name="cross_entropy",
    description=(
        "Cross-entropy loss of each token. logits is a contiguous bfloat16 matrix [tokens, vocabulary], labels an int64 vector "
        "[tokens] of columns; loss = log(sum of exp(logits)) - logits[label] per row. The result is a new float32 vector "
        "[tokens]. Compute in float32; exponentials must not overflow."
    ),
    entry="cross_entropy",
    reference=cross_entropy,
    training_cases=(
        _case(4096, 128256),  # Llama 3.1
        _case(8192, 50257),  # GPT-2
        _case(4096, 32000),  # Llama 2, Mistral 7B
    ),
    held_out_cases=(
        _case(1, 30522),  # BERT
        _case(1000, 32001),
        _case(2047, 151936),  # Qwen2.5
        _case(8192, 128256),
    ),
    small_cases=(_case(5, 13, offset=1), _case(3, 1025), _case(70, 33)),
    starting_kernels=("../starts/cross_entropy.py",),
    kind="loss",
)
