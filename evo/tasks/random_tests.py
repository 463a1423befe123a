"""Statistical tests for outputs that are random by intention (dropout, sampling), with a proven bound on false alarms.

A task with the oracle ``stochastic`` names a function `Statistic`: it is given the arguments and the flattened outputs of one call
and yields findings. A call fails where a finding's probability lies below `FALSE_ALARM` divided by the number of findings, so an
honest kernel is refused in at most one of a million calls. That holds without approximation: all tests here count independent
events, whose tails are bounded by Hoeffding, "Probability inequalities for sums of bounded random variables" (1963),
theorem 1: P(share ≥ a) ≤ exp(−n · KL(a ‖ p)) where p is the mean of the events' probabilities, which need not be equal.

What one call cannot show, that another seed gives other bits, the judge sees by `pattern`: patterns of two draws of a case, judged
one after the other, must be independent. Equal seeds giving equal bits is what repeated runs test. So the seed has to be an
input that is drawn: an integer tensor of one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

FALSE_ALARM = 1e-6
"""Largest probability that the findings of one call refuse an honest kernel."""
LAGS = (1, 2, 3, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
"""Distances at which neighbours are compared: lanes, warps, blocks."""


@dataclass(frozen=True)
class Finding:
    """One test of one call.

    Attributes:
        text: What was found, with the numbers, for whoever mends the kernel.
        probability: An upper bound of how likely an honest kernel shows this or worse; 0 for what must never be, 1 for what may.
        pattern: Booleans that should be independent of those of another seed, with `share` the expected share of True.
        share: See `pattern`.
    """

    text: str
    probability: float
    pattern: torch.Tensor | None = None
    share: float = 0.5


Statistic = Callable[[tuple[Any, ...], tuple[torch.Tensor, ...]], Iterable[Finding]]
"""(arguments, flattened outputs) → findings."""


def always(text: str, holds: torch.Tensor) -> Finding:
    """What must hold for every element, such as "dropped values are zero"."""
    broken = int((~holds).sum())
    return Finding(f"{text}: broken at {broken} of {holds.numel()} elements", 0.0 if broken else 1.0)


def kept_share(text: str, kept: torch.Tensor, share: float) -> Iterable[Finding]:
    """Independent events of equal probability: as many as expected, over all, per row and per column, and independent of their
    neighbours at `LAGS` and at a row's length.

    Args:
        text: What is counted.
        kept: Booleans of any shape, True where the event happened.
        share: Its probability.
    """
    count = kept.numel()
    yield Finding(
        f"{text}: {int(kept.sum())} of {count}, expected a share of {share:g}",
        _tail(float(kept.double().mean()) if count else share, share, count), kept, share,
    )  # fmt: skip
    if kept.dim() > 1 and count:
        matrix = kept.reshape(-1, kept.shape[-1]).double()
        yield _worst_share(f"{text}, per row", matrix.mean(dim=1), share, matrix.shape[1])
        yield _worst_share(f"{text}, per column", matrix.mean(dim=0), share, matrix.shape[0])
    yield from _neighbours(text, kept, share)


def category_shares(text: str, drawn: torch.Tensor, probabilities: torch.Tensor) -> Iterable[Finding]:
    """Samples from given probabilities: each category as often as it should be.

    Args:
        text: What is drawn.
        drawn: Categories [samples], integers.
        probabilities: [categories] or, one row per sample, [samples, categories]; each row sums to 1.
    """
    expected = probabilities.double()
    expected = expected.expand(len(drawn), -1) if expected.dim() == 1 else expected
    if not len(drawn):
        return
    within = (drawn >= 0) & (drawn < expected.shape[1])
    yield always(f"{text}: categories lie in [0, {expected.shape[1]})", within)
    places = drawn.long().clamp(0, expected.shape[1] - 1)
    yield always(f"{text}: no category of probability 0 is drawn", expected.gather(1, places[:, None])[:, 0] > 0)
    shares = torch.bincount(places, minlength=expected.shape[1]).double() / len(drawn)
    tails = [_tail(*pair, len(drawn)) for pair in zip(shares.tolist(), expected.mean(dim=0).tolist(), strict=True)]
    worst = min(range(len(tails)), key=tails.__getitem__)
    yield Finding(
        f"{text}: category {worst} drawn {shares[worst] * len(drawn):.0f} of {len(drawn)} times, "
        f"expected {float(expected[:, worst].sum()):.1f}",
        min(1.0, tails[worst] * len(tails)),
    )


def refused(findings: Sequence[Finding]) -> Finding | None:
    """The least likely finding where it is too unlikely for an honest kernel."""
    worst = min(findings, key=lambda finding: finding.probability, default=None)
    return worst if worst is not None and worst.probability < FALSE_ALARM / len(findings) else None


def same_pattern(a: Finding, b: Finding) -> Finding:
    """Whether the patterns of two seeds agree more, or less, than independent ones would."""
    assert a.pattern is not None
    assert b.pattern is not None
    equal = (a.pattern == b.pattern.to(a.pattern.device)).double()
    expected = a.share * b.share + (1 - a.share) * (1 - b.share)
    share = float(equal.mean()) if equal.numel() else expected
    text = f"patterns of two seeds agree at {share:.2%} of {equal.numel()} places, expected {expected:.2%}: does the seed count?"
    return Finding(text, _tail(share, expected, equal.numel()))


def _neighbours(text: str, kept: torch.Tensor, share: float) -> Iterable[Finding]:
    flat = kept.reshape(-1)
    expected = share * share + (1 - share) * (1 - share)
    row = kept.shape[-1] if kept.dim() else 1
    for lag in sorted({*LAGS, row}):
        blocks = flat.numel() // (2 * lag)
        if blocks == 0 or lag == 0:
            continue
        # Disjoint pairs, so that each agreement is an event of its own.
        pairs = flat[: blocks * 2 * lag].reshape(blocks, 2, lag)
        agree = float((pairs[:, 0] == pairs[:, 1]).double().mean())
        message = f"{text}: neighbours {lag} apart agree in {agree:.2%} of {blocks * lag} pairs, expected {expected:.2%}"
        yield Finding(message, _tail(agree, expected, blocks * lag))


def _worst_share(text: str, shares: torch.Tensor, share: float, count: int) -> Finding:
    worst = float(shares[(shares - share).abs().argmax()])
    both = [float(shares.min()), float(shares.max())]
    probability = min(1.0, min(_tail(item, share, count) for item in both) * len(shares))
    return Finding(f"{text}: a share of {worst:.3f} of {count}, expected {share:g}", probability)


def _tail(found: float, expected: float, count: int) -> float:
    """Bound of the probability of a share at least as far out as `found`, on either side."""
    if count == 0 or found == expected:
        return 1.0
    if expected <= 0 or expected >= 1:
        return 0.0
    divergence = 0.0
    for a, p in ((found, expected), (1 - found, 1 - expected)):
        divergence += a * math.log(a / p) if a > 0 else 0.0
    return min(1.0, 2 * math.exp(-count * divergence))
