"""Projection to the vocabulary fused with the cross-entropy per token, so that no logits are stored, in bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec

TOKENS_AT_ONCE = 512
"""Rows of logits that the reference holds at a time: half a GiB in float64 for a vocabulary of 128,256."""


def fused_linear_cross_entropy(x: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """cross_entropy(x weightᵀ, labels) per token; the logits stay in at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    projection = weight.to(wide).t()
    parts = [
        torch.nn.functional.cross_entropy(rows.to(wide) @ projection, chosen, reduction="none")
        for rows, chosen in zip(torch.split(x, TOKENS_AT_ONCE), torch.split(labels, TOKENS_AT_ONCE), strict=True)
    ]
    return torch.cat(parts)


def _case(tokens: int, hidden: int, vocabulary: int) -> Case:
    x = TensorSpec((tokens, hidden), "bfloat16")
    weight = TensorSpec((vocabulary, hidden), "bfloat16", scale=2.0 * hidden**-0.5)
    labels = TensorSpec((tokens,), "int64", distribution="integers", high=vocabulary)
    # Per logit: the product, and maximum, difference, exponential, sum.
    return Case(
        f"{tokens}x{hidden}x{vocabulary}",
        (x, weight, labels),
        x.nbytes + weight.nbytes + labels.nbytes + 4 * tokens,
        tokens * vocabulary * (2 * hidden + 4),
    )


TASK = Task(
    name="fused_linear_cross_entropy",
    description=(
        "Loss of a language model's last layer without stored logits. x is a contiguous bfloat16 matrix [tokens, hidden], "
        "weight a contiguous bfloat16 matrix [vocabulary, hidden], labels an int64 vector [tokens]. With logits = x @ weight^T,"
        " accumulated and kept in float32: loss = log(sum of exp(logits)) - logits[label] per token. The result is a new "
        "float32 vector [tokens]."
    ),
    entry="fused_linear_cross_entropy",
    reference=fused_linear_cross_entropy,
    training_cases=(
        _case(2048, 2048, 128256),  # Llama 3.2 1B
        _case(4096, 4096, 32000),  # Mistral 7B
        _case(4096, 768, 50257),  # GPT-2
    ),
    held_out_cases=(
        _case(16, 768, 30522),  # BERT
        _case(1000, 333, 5001),
        _case(2048, 4096, 128256),  # Llama 3.1 8B
    ),
    small_cases=(_case(5, 19, 37), _case(3, 33, 130), _case(65, 16, 70)),
    starting_kernels=("../starts/fused_linear_cross_entropy.py",),
    kind="loss",
)
