"""One step of AdamW, which updates weights and moments in place, in float32."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def adamw(
    weights: torch.Tensor,
    gradient: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    step: int,
) -> None:
    """Decoupled weight decay, moments, and the bias-corrected update (Loshchilov and Hutter, 2019)."""
    weights.mul_(1 - lr * decay)
    first.mul_(beta1).add_(gradient, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    denominator = (second / (1 - beta2**step)).sqrt_().add_(eps)
    weights.addcdiv_(first, denominator, value=-lr / (1 - beta1**step))


def _case(count: int, step: int = 10, offset: int = 0) -> Case:
    normal = TensorSpec((count,), "float32", scale=0.02, offset=offset)
    second = TensorSpec((count,), "float32", distribution="uniform", low=0.0, high=1e-3)
    # Read: four tensors; written: three. Per element: decay, five for the moments, six for the update.
    return Case(
        f"{count}_t{step}",
        (normal, normal, normal, second, 1e-3, 0.9, 0.95, 1e-8, 0.1, step),
        7 * normal.nbytes,
        12 * count,
    )


TASK = Task(
    name="adamw",
    description=(
        "One step of AdamW in place. weights, gradient, first and second are contiguous float32 vectors [count]; lr, beta1, "
        "beta2, eps and decay are Python floats, step (from 1) is an int. In order: weights = weights * (1 - lr * decay); first"
        " = beta1 * first + (1 - beta1) * gradient; second = beta2 * second + (1 - beta2) * gradient^2; weights = weights - lr "
        "/ (1 - beta1^step) * first / (sqrt(second / (1 - beta2^step)) + eps). weights, first and second are updated, gradient "
        "is not; nothing is returned."
    ),
    entry="adamw",
    reference=adamw,
    training_cases=(
        _case(4096 * 14336),  # a feed-forward weight of Llama 3.1 8B
        _case(4096 * 4096),  # one of its attention weights
        _case(3584 * 18944),  # a feed-forward weight of Qwen2.5 7B
    ),
    held_out_cases=(_case(4096), _case(1_000_003, step=3), _case(128256 * 2048)),  # the last: Llama 3.2 1B's embedding
    small_cases=(_case(37, step=1, offset=1), _case(1030, step=7), _case(1, step=100)),
    starting_kernels=("../starts/adamw.py",),
    mutates=(0, 2, 3),
    kind="elementwise",
)
