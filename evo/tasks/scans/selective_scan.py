"""The selective state-space recurrence of Mamba, forward, in float32 and bfloat16."""

from __future__ import annotations

import torch

from evo.tasks.base import Case, Task, TensorSpec


def selective_scan(
    u: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor
) -> torch.Tensor:
    """h ← exp(δ a) h + δ u b, y = h · c + d u, token after token, in at least float32."""
    wide = torch.promote_types(u.dtype, torch.float32)
    state = torch.zeros((u.shape[0], *a.shape), dtype=wide, device=u.device)
    outputs = []
    for token in range(u.shape[1]):
        x, step = u[:, token].to(wide), delta[:, token]
        state = torch.exp(step[..., None] * a) * state + (step * x)[..., None] * b[:, token, None, :].to(wide)
        outputs.append((state * c[:, token, None, :].to(wide)).sum(dim=-1) + d * x)
    return torch.stack(outputs, dim=1).to(u.dtype)


def _case(batch: int, length: int, channels: int, states: int = 16) -> Case:
    u = TensorSpec((batch, length, channels), "bfloat16")
    # What the softplus of Mamba's initialisation gives, and its decay rates: 1 to the number of states.
    delta = TensorSpec((batch, length, channels), "float32", distribution="uniform", low=0.001, high=0.1)
    a = TensorSpec((channels, states), "float32", distribution="uniform", low=-float(states), high=-1.0)
    b = TensorSpec((batch, length, states), "bfloat16")
    d = TensorSpec((channels,), "float32")
    # Per state and token: exponential, three products, two sums, and δ u; per channel d u.
    return Case(
        f"b{batch}_s{length}_c{channels}_n{states}",
        (u, delta, a, b, b, d),
        2 * u.nbytes + delta.nbytes + a.nbytes + 2 * b.nbytes + d.nbytes,
        u.numel * (7 * states + 3),
    )


TASK = Task(
    name="selective_scan",
    description=(
        "Selective scan of Mamba, forward. u is bfloat16 [batch, length, channels], delta float32 [batch, length, channels] "
        "(positive), a float32 [channels, states] (negative), b and c bfloat16 [batch, length, states], d float32 [channels]; "
        "all contiguous, states a power of two. Per batch and channel, with h = 0 before the first token: h[n] = exp(delta[t] *"
        " a[n]) * h[n] + delta[t] * u[t] * b[t, n]; y[t] = sum over n of h[n] * c[t, n] + d * u[t]. The result is a new "
        "contiguous bfloat16 tensor [batch, length, channels]. The state is kept in float32."
    ),
    entry="selective_scan",
    reference=selective_scan,
    training_cases=(
        _case(8, 1024, 1536),  # Mamba 130M
        _case(2, 2048, 5120),  # Mamba 2.8B
        _case(1, 4096, 8192),  # Falcon Mamba 7B
    ),
    held_out_cases=(_case(1, 64, 1536), _case(3, 333, 1023, 8), _case(4, 2048, 8192)),
    small_cases=(_case(2, 7, 5, 4), _case(1, 17, 37), _case(1, 1, 3, 1)),
    starting_kernels=("../starts/selective_scan.py",),
    kind="scan",
)
