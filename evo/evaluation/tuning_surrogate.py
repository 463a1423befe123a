"""A Gaussian process over a knob space, for a few dozen trials: which untried configuration promises most.

Matérn-5/2 kernel with one length scale per knob, chosen by marginal likelihood (Rasmussen & Williams, 2006, chapter 5) among a few;
promise is expected improvement (Jones et al., 1998) summed over cases, times the probability that a configuration is feasible, which
a second process with the same kernel learns from all trials (Gardner et al., 2014). Questions still open are answered by the model itself,
so that those of one batch differ (Ginsbourger et al., 2010). Pure: numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evo.evaluation.tuning_space import Codes, Floats, KnobSpace

SCALES = (1.0, 2.0, 4.0, 12.0)
"""Length scales to choose from: steps of an ordered knob over which latency forgets; the largest one says that a knob hardly matters."""
SWEEPS = 2
"""How often each knob's scale is chosen anew, given the others'."""
NOISE = 0.03
"""Variance of what the kernel does not explain, as a share of that of the trials: timing, and whims of compilers."""
SLOWEST = 1.2
"""Log ratio to the best beyond which trials count as equally bad: how bad they are says nothing about where the best is."""


@dataclass(frozen=True)
class Known:
    """What was learned so far.

    Attributes:
        rows: Configurations with latencies.
        logs: Natural logarithms of latencies, one row each, one column per case.
        infeasible: Configurations that cannot be run.
        open: Configurations asked for and not answered yet.
    """

    rows: Sequence[Codes]
    logs: Floats
    infeasible: Sequence[Codes]
    open: Sequence[Codes]


def promises(space: KnobSpace, known: Known, candidates: Sequence[Codes]) -> Floats:
    """How much each candidate promises, as a share of latency; at least one latency must be known.

    Args:
        space: Of all rows.
        known: Trials so far.
        candidates: None of which was asked for.
    """
    features = space.features([*known.rows, *known.open, *candidates, *known.infeasible])
    first, last = len(known.rows), len(known.rows) + len(known.open)
    tried, opened, new, bad = np.split(features, [first, last, last + len(candidates)])
    clipped = np.minimum(known.logs - known.logs.min(axis=0), SLOWEST)
    scale = max(float(clipped.std(axis=0).mean()), 0.02)
    scales = _scales(space, tried, clipped / scale)
    total = np.zeros(len(candidates))
    at = np.concatenate([tried, opened])
    for case in range(clipped.shape[1]):
        residual = clipped[:, case] / scale
        level = float(residual.mean())
        if len(opened):
            believed, _ = _predict(tried, residual - level, opened, scales)
            residual = np.concatenate([residual, believed + level])
        mean, deviation = _predict(at, residual - level, new, scales)
        best = float(clipped[:, case].min())
        total += _improvement(best - scale * (mean + level), scale * deviation)
    return total * _feasibility(tried, bad, new, scales)


def _predict(at: Floats, values: Floats, new: Floats, scales: Floats) -> tuple[Floats, Floats]:
    factor = np.linalg.cholesky(_matern(at, at, scales) + NOISE * np.eye(len(at)))
    cross = _matern(at, new, scales)
    half = np.linalg.solve(factor, cross)
    mean: Floats = half.T @ np.linalg.solve(factor, values)
    return mean, np.sqrt(np.maximum(1e-9, 1.0 - (half**2).sum(axis=0)))


def _matern(a: Floats, b: Floats, scales: Floats) -> Floats:
    a, b = a / scales, b / scales
    squares = np.maximum(0.0, (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T)
    root = np.sqrt(5 * squares)
    result: Floats = (1 + root + 5 * squares / 3) * np.exp(-root)
    return result


def _scales(space: KnobSpace, tried: Floats, values: Floats) -> Floats:
    """Per column; equal within a knob."""
    columns = np.asarray(space.columns)
    chosen = np.full(len(space.names), SCALES[1])
    if len(tried) < 4:
        return np.take(chosen, columns)
    centred = values - values.mean(axis=0)
    best = _likelihood(tried, centred, chosen[columns])
    for _ in range(SWEEPS):
        for knob in range(len(chosen)):
            for scale in SCALES:
                trial = chosen.copy()
                trial[knob] = scale
                likelihood = _likelihood(tried, centred, trial[columns])
                if likelihood > best + 1e-9:
                    best, chosen = likelihood, trial
    return np.take(chosen, columns)


def _likelihood(at: Floats, values: Floats, scales: Floats) -> float:
    """Logarithm of the marginal likelihood, with the variance of each case at its best value."""
    factor = np.linalg.cholesky(_matern(at, at, scales) + NOISE * np.eye(len(at)))
    half = np.linalg.solve(factor, values)
    variances = np.maximum((half**2).mean(axis=0), 1e-12)
    determinant = float(np.log(np.diag(factor)).sum())
    # Short scales fit anything: a mild preference for longer ones.
    preference = float(np.log(np.unique(scales)).sum()) * 0.1
    likelihood: float = -0.5 * len(at) * float(np.log(variances).sum()) - determinant * values.shape[1] + preference
    return likelihood


def _feasibility(tried: Floats, bad: Floats, new: Floats, scales: Floats) -> Floats:
    if not len(bad):
        return np.ones(len(new))
    at = np.concatenate([tried, bad])
    labels = np.concatenate([np.zeros(len(tried)), np.full(len(bad), -2.0)])  # 1 is expected where nothing is known
    mean, deviation = _predict(at, labels, new, np.minimum(scales, SCALES[2]))
    return _normal((1.0 + mean) / np.sqrt(0.1 + deviation**2))


def _improvement(gain: Floats, deviation: Floats) -> Floats:
    ratio = gain / deviation
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    return gain * _normal(ratio) + deviation * density


def _normal(values: Floats) -> Floats:
    """The normal distribution function."""
    return np.asarray([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])
