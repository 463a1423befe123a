"""Replays tuners on a measured grid: what each tries, in which order, and how good its choice is after every trial."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna

from evo.evaluation.tuning import Tuner
from evo.evaluation.tuning_rung import AHEAD, GENERATION
from evo.evaluation.tuning_surrogate import Guess
from evo.records import Configuration
from experiments.tuning.grid import Grid

REPEATS = 20
"""A plain sampler may propose what it knows; so many times its budget of proposals end it."""
WITHIN = 0.02
QUICK = 8


@dataclass(frozen=True)
class Course:
    """What one strategy did with one seed on one grid.

    Attributes:
        grid, strategy, seed: Which.
        tried: Distinct configurations in order, infeasible ones included: they count as trials.
        quality: After each trial, the best latency of the grid over the true latency of what the strategy would choose; 0 while it has
            nothing to choose.
    """

    grid: str
    strategy: str
    seed: int
    tried: tuple[Configuration, ...]
    quality: tuple[float, ...]

    @property
    def reached(self) -> float:
        """Trials after which the choice is within `WITHIN` of the best and stays there; infinite if it is not in the end."""
        good = [value * (1 + WITHIN) >= 1 for value in self.quality]
        if not good or not good[-1]:
            return math.inf
        last_bad = max((place for place, item in enumerate(good) if not item), default=-1)
        return last_bad + 2

    def at(self, trials: int) -> float:
        """Quality after so many trials, or after the last."""
        return self.quality[min(trials, len(self.quality)) - 1] if self.quality and trials else 0.0


Oracle = Mapping[Configuration, float | None]
"""What a strategy sees: noisy latencies, None where infeasible."""


def observed(grid: Grid, seed: int, noise: float) -> Oracle:
    """Latencies with one draw of noise each; the same for all strategies of a seed."""
    draws = np.random.default_rng([seed, len(grid.entries)]).standard_normal(len(grid.entries))
    return {
        entry.configuration: None if entry.latency_us is None else entry.latency_us * math.exp(noise * float(draw))
        for entry, draw in zip(grid.entries, draws, strict=True)
    }


def budget(grid: Grid, share: float) -> int:
    """Trials that are a share of the valid configurations."""
    return max(1, int(share * len(grid.valid)))


def course(grid: Grid, strategy: str, seed: int, tried: Sequence[Configuration], seen: Oracle) -> Course:
    """Judges a sequence of trials: the choice is by what was seen, its worth by the truth."""
    quality: list[float] = []
    chosen: Configuration | None = None
    for configuration in tried:
        latency, best = seen[configuration], None if chosen is None else seen[chosen]
        if latency is not None and (best is None or latency < best):
            chosen = configuration
        true_us = None if chosen is None else grid.latencies[chosen]
        quality.append(0.0 if true_us is None else grid.best_us / true_us)
    return Course(grid.name, strategy, seed, tuple(tried), tuple(quality))


def ours(grid: Grid, seen: Oracle, trials: int, seed: int, guess: Guess | None) -> list[Configuration]:
    """The tuner of this project without hints, with as many trials under way as in a climb, where the next compile meanwhile."""
    tuner = Tuner(grid.space, grid.default, [], trials, seed, guess=guess)
    tried: list[Configuration] = []
    under_way: deque[Configuration] = deque()
    while True:
        while len(tried) < trials and len(under_way) < AHEAD * GENERATION and (configuration := tuner.ask()) is not None:
            tried.append(configuration)
            under_way.append(configuration)
        if not under_way:
            return tried
        configuration = under_way.popleft()
        tuner.tell(configuration, seen[configuration], seen[configuration] is not None)


def ours_blind(grid: Grid, seen: Oracle, trials: int, seed: int, guess: Guess | None) -> list[Configuration]:
    """The same, with nothing known before the first trial."""
    return ours(grid, seen, trials, seed, None)


def random_search(grid: Grid, seen: Oracle, trials: int, seed: int, guess: Guess | None) -> list[Configuration]:
    """Uniform, without repeats."""
    everything = [entry.configuration for entry in grid.entries]
    order = np.random.default_rng([seed, 1]).permutation(len(everything))
    return [everything[int(place)] for place in order[:trials]]


def plain_tpe(grid: Grid, seen: Oracle, trials: int, seed: int, guess: Guess | None) -> list[Configuration]:
    """Optuna's TPE as it is: its defaults, categorical knobs, infinity for what fails; repeats cost nothing."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    tried: dict[Configuration, None] = {}
    for _ in range(REPEATS * trials):
        if len(tried) >= trials:
            break
        trial = study.ask()
        chosen = {name: trial.suggest_categorical(name, choices) for name, choices in grid.space.items()}
        configuration = Configuration({**grid.default, **chosen})
        latency = seen[configuration]
        study.tell(trial, math.inf if latency is None else latency)
        tried[configuration] = None
    return list(tried)


Strategy = Callable[[Grid, Oracle, int, int, Guess | None], list[Configuration]]

STRATEGIES: Mapping[str, Strategy] = {
    "ours": ours,
    "ours, without a guess": ours_blind,
    "random": random_search,
    "TPE, defaults": plain_tpe,
}


def replay(grid: Grid, strategy: str, seed: int, noise: float, share: float, guess: Guess | None = None) -> Course:
    """One course of a strategy of `STRATEGIES`; only ours makes use of a guess."""
    seen = observed(grid, seed, noise)
    tried = STRATEGIES[strategy](grid, seen, budget(grid, share), seed, guess)
    return course(grid, strategy, seed, tried, seen)


def gpu_seconds(grid: Grid, tried: Sequence[Configuration], chosen: Configuration | None) -> float:
    """GPU seconds of timing these configurations and gating the chosen one, as a tuning in a climb does."""
    cost = {entry.configuration: entry for entry in grid.entries}
    timing = math.fsum(cost[item].time_s for item in tried)
    return timing + (cost[chosen].gate_s if chosen is not None else 0.0)


def compile_seconds(grid: Grid, trials: int) -> float:
    """Seconds of compiling so many configurations one after the other on one core, at the grid's mean: as a tuning alone does."""
    return grid.compile_s * trials / len(grid.entries)
