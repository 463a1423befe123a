"""A Gaussian process over a knob space, for a few dozen trials: which untried configuration promises most.

Matérn-5/2 kernel with one length scale per knob, chosen by marginal likelihood (Rasmussen & Williams, 2006, chapter 5) among a few;
promise is expected improvement (Jones et al., 1998) summed over cases, times the probability that a configuration is feasible, which
a second process with the same kernel learns from all trials (Gardner et al., 2014). Questions still open are answered by the model itself,
so that those of one batch differ (Ginsbourger et al., 2010). A guess made before any trial, where there is one, is the mean, and how much
each of its terms counts is learned with the rest (Rasmussen & Williams, section 2.7). Pure: numbers in, numbers out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

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
USUAL, PSEUDO = 0.35, 2.0
"""Standard deviation of log latencies in a usual space, and how many trials that belief is worth."""
WEIGHT, DOUBT = 0.7, 0.3
"""Of each term of a guess: what it counts before any trial, and the standard deviation of what it may turn out to count."""


class Guess(Protocol):
    """What is thought of configurations before any trial."""

    def terms(self, rows: Sequence[Codes]) -> Floats:
        """Per configuration and term, a logarithm of a latency ratio, at least 0."""

    def fits(self, rows: Sequence[Codes]) -> Floats:
        """Per configuration, the probability that it can be run."""


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


def promises(space: KnobSpace, known: Known, candidates: Sequence[Codes], guess: Guess | None = None) -> Floats:
    """How much each candidate promises, as a share of latency; at least one latency must be known.

    Args:
        space: Of all rows.
        known: Trials so far.
        candidates: None of which was asked for.
        guess: What is thought of configurations before any trial.
    """
    parts = (known.rows, known.open, candidates, known.infeasible)
    tried, opened, new, bad = (_Points(space.features(rows), _terms_of(guess, rows)) for rows in parts)
    clipped = np.minimum(known.logs - known.logs.min(axis=0), SLOWEST)
    # A variance known from few trials is drawn towards that of usual spaces.
    spread = float(np.sqrt((clipped.var(axis=0).mean() * len(clipped) + USUAL**2 * PSEUDO) / (len(clipped) + PSEUDO)))
    scales = _scales(space, tried, clipped, spread)
    total = np.zeros(len(candidates))
    at = tried.joined(opened)
    for case in range(clipped.shape[1]):
        values = clipped[:, case]
        if len(opened.features):
            believed, _ = _predict(tried, values, opened, scales, spread)
            values = np.concatenate([values, believed])
        mean, deviation = _predict(at, values, new, scales, spread)
        total += _improvement(float(clipped[:, case].min()) - mean, deviation)
    feasible = _feasibility(tried, bad, new, scales)
    return total * feasible * (guess.fits(candidates) if guess is not None else 1.0)


@dataclass(frozen=True)
class _Points:
    """Configurations as numbers: features for the kernel, terms of the guess."""

    features: Floats
    terms: Floats

    def joined(self, other: _Points) -> _Points:
        return _Points(np.concatenate([self.features, other.features]), np.concatenate([self.terms, other.terms]))


def _terms_of(guess: Guess | None, rows: Sequence[Codes]) -> Floats:
    return np.zeros((len(rows), 0)) if guess is None else guess.terms(rows)


def _covariance(a: _Points, b: _Points, scales: Floats, spread: float) -> Floats:
    """What knobs explain, and doubt about the weight of each term of the guess."""
    found: Floats = spread**2 * _matern(a.features, b.features, scales)
    if a.terms.shape[1] and b.terms.shape[1]:
        found = found + DOUBT**2 * a.terms @ b.terms.T
    return found


def _predict(at: _Points, values: Floats, new: _Points, scales: Floats, spread: float) -> tuple[Floats, Floats]:
    """Mean and deviation of log latencies; the level is what the trials say, given the guess."""
    factor = np.linalg.cholesky(_covariance(at, at, scales, spread) + spread**2 * NOISE * np.eye(len(at.features)))
    residual = values - WEIGHT * at.terms.sum(axis=1)
    level = float(residual.mean())
    half = np.linalg.solve(factor, _covariance(at, new, scales, spread))
    mean: Floats = half.T @ np.linalg.solve(factor, residual - level) + level + WEIGHT * new.terms.sum(axis=1)
    own = spread**2 + DOUBT**2 * (new.terms**2).sum(axis=1)
    return mean, np.sqrt(np.maximum(1e-9 * spread**2, own - (half**2).sum(axis=0)))


def _matern(a: Floats, b: Floats, scales: Floats) -> Floats:
    a, b = a / scales, b / scales
    squares = np.maximum(0.0, (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T)
    root = np.sqrt(5 * squares)
    result: Floats = (1 + root + 5 * squares / 3) * np.exp(-root)
    return result


def _scales(space: KnobSpace, tried: _Points, values: Floats, spread: float) -> Floats:
    """Per column; equal within a knob."""
    columns = np.asarray(space.columns)
    chosen = np.full(len(space.names), SCALES[1])
    if len(tried.features) < 4:
        return np.take(chosen, columns)
    residual = values - WEIGHT * tried.terms.sum(axis=1)[:, None]
    centred = residual - residual.mean(axis=0)
    best = _likelihood(tried, centred, chosen[columns], spread)
    for _ in range(SWEEPS):
        for knob in range(len(chosen)):
            for scale in SCALES:
                trial = chosen.copy()
                trial[knob] = scale
                likelihood = _likelihood(tried, centred, trial[columns], spread)
                if likelihood > best + 1e-9:
                    best, chosen = likelihood, trial
    return np.take(chosen, columns)


def _likelihood(at: _Points, values: Floats, scales: Floats, spread: float) -> float:
    """Logarithm of the marginal likelihood, with the variance of each case at its best value."""
    factor = np.linalg.cholesky(_covariance(at, at, scales, spread) / spread**2 + NOISE * np.eye(len(at.features)))
    half = np.linalg.solve(factor, values)
    variances = np.maximum((half**2).mean(axis=0), 1e-12)
    determinant = float(np.log(np.diag(factor)).sum())
    # Short scales fit anything: a mild preference for longer ones.
    preference = float(np.log(np.unique(scales)).sum()) * 0.1
    likelihood: float = -0.5 * len(at.features) * float(np.log(variances).sum()) - determinant * values.shape[1] + preference
    return likelihood


def _feasibility(tried: _Points, bad: _Points, new: _Points, scales: Floats) -> Floats:
    if not len(bad.features):
        return np.ones(len(new.features))
    at = np.concatenate([tried.features, bad.features])
    labels = np.concatenate([np.zeros(len(tried.features)), np.full(len(bad.features), -2.0)])  # 1 where nothing is known
    scales = np.minimum(scales, SCALES[2])
    factor = np.linalg.cholesky(_matern(at, at, scales) + NOISE * np.eye(len(at)))
    half = np.linalg.solve(factor, _matern(at, new.features, scales))
    mean, variance = half.T @ np.linalg.solve(factor, labels), np.maximum(1e-9, 1.0 - (half**2).sum(axis=0))
    return _normal((1.0 + mean) / np.sqrt(0.1 + variance))


def _improvement(gain: Floats, deviation: Floats) -> Floats:
    ratio = gain / deviation
    density = np.exp(-0.5 * ratio**2) / math.sqrt(2 * math.pi)
    return gain * _normal(ratio) + deviation * density


def _normal(values: Floats) -> Floats:
    """The normal distribution function."""
    return np.asarray([0.5 * math.erfc(-value / math.sqrt(2)) for value in values])
