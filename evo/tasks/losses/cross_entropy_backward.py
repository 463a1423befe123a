"""Gradient of the cross-entropy per token with respect to the logits, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def cross_entropy_backward(dloss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(softmax(logits) − one-hot(label)) · dloss per row."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    gradient = torch.softmax(wide, dim=-1)
    rows = torch.arange(len(labels), device=labels.device)
    gradient[rows, labels] -= 1.0
    return gradient.mul_(dloss[:, None].to(gradient.dtype)).to(logits.dtype)


def _case(tokens: int, vocabulary: int, offset: int = 0) -> Case:
    logits = TensorSpec((tokens, vocabulary), "bfloat16", scale=2.0, offset=offset)
    labels = TensorSpec((tokens,), "int64", distribution="integers", high=vocabulary)
    # Per element: maximum, difference, exponential, sum, division, product.
    return Case(
        f"{tokens}x{vocabulary}",
        (TensorSpec((tokens,), "float32"), logits, labels),
        2 * logits.nbytes + labels.nbytes + 4 * tokens,
        6 * logits.numel,
    )


TASK = Task(
    name="cross_entropy_backward",
    description=(
        "Gradient of the cross-entropy loss of each token with respect to its logits. dloss is float32 [tokens], logits a "
        "contiguous bfloat16 matrix [tokens, vocabulary], labels an int64 vector [tokens] of columns. dlogits = (softmax(logits"
        " over the row) - (1 at the label's column, else 0)) * dloss of the row, a new contiguous bfloat16 matrix [tokens, "
        "vocabulary]. The softmax is not given. Compute in float32."
    ),
    entry="cross_entropy_backward",
    reference=cross_entropy_backward,
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
    starting_kernels=("../starts/cross_entropy_backward.py",),
    kind="loss",
)
