"""Kullback-Leibler divergence of each token's distribution, as in distillation, in float32."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def kl_divergence(log_q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """Σ p (log p − log q) over the last dimension, where 0 · log 0 is 0."""
    return torch.nn.functional.kl_div(log_q, p, reduction="none").sum(dim=-1)


def _case(tokens: int, vocabulary: int, offset: int = 0) -> Case:
    log_q = TensorSpec((tokens, vocabulary), "float32", scale=2.0, offset=offset)
    # Not normalised to a sum of one: the sum is defined for any weights, and its terms must show.
    p = TensorSpec((tokens, vocabulary), "float32", distribution="uniform")
    # Per element: logarithm, difference, product, sum.
    return Case(f"{tokens}x{vocabulary}", (log_q, p), 2 * p.nbytes + 4 * tokens, 4 * p.numel)


TASK = Task(
    name="kl_divergence",
    description=(
        "Kullback-Leibler divergence per row, as torch.nn.functional.kl_div summed over the last dimension. log_q and p are "
        "contiguous float32 matrices [tokens, vocabulary]; log_q holds logarithms, p weights in [0, 1), which need not sum to "
        "one. y = sum of p * (log(p) - log_q) over the row, with 0 where p is 0. The result is a new float32 vector [tokens]."
    ),
    entry="kl_divergence",
    reference=kl_divergence,
    training_cases=(
        _case(2048, 128256),  # Llama 3.1
        _case(4096, 50257),  # GPT-2
        _case(4096, 32000),  # Llama 2, Mistral 7B
    ),
    held_out_cases=(
        _case(1, 30522),  # BERT
        _case(1000, 32001),
        _case(4096, 128256),
    ),
    small_cases=(_case(5, 13, offset=1), _case(3, 1025), _case(70, 33)),
    starting_kernels=("../starts/kl_divergence.py",),
    kind="loss",
)
