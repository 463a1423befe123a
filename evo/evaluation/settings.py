"""Settings of an evaluator, in one typed place."""

from __future__ import annotations

import itertools
from dataclasses import dataclass


@dataclass(frozen=True)
class EvaluationSettings:
    """How variants are evaluated.

    Attributes:
        target: ``backend:arch`` that kernels are compiled for; ``auto`` takes the GPU's own.
        seed: Root of the input seeds and of tuning.
        cores: CPU cores that are its own where it shares a machine with other evaluators; None for all of the machine.
        tune_trials: Configurations timed per variant and group of like cases in the quick tune (0: none but the declared one).
        deep_tune_trials: The same, for variants whose quick tune comes near the best of their task (0: no deep tune).
        start_tune_trials: The same for starting kernels, whose best is the baseline: a baseline tuned less would flatter its children.
        race: Timed A/B pairs per case at the end of each level of a race: who cannot reach the incumbent any more leaves after a level,
            contenders get the last count (fewer of kernels of milliseconds), and so does an elite's verification (in which nobody leaves).
        training_cases: Score only the first this many training cases of each task; None for all.
        trace_deadline_s, compile_deadline_s, run_deadline_s: Wall seconds per trace, kernel compilation, and checked or timed run.
    """

    target: str = "auto"
    seed: int = 0
    cores: int | None = None
    tune_trials: int = 8
    deep_tune_trials: int = 40
    start_tune_trials: int = 40
    race: tuple[int, ...] = (8, 32, 128)
    trace_deadline_s: float = 60.0
    compile_deadline_s: float = 30.0
    training_cases: int | None = None
    run_deadline_s: float = 120.0

    def __post_init__(self) -> None:
        if self.training_cases is not None and self.training_cases < 1:
            raise ValueError(f"training_cases ≥ 1 or left out, given {self.training_cases}")
        trials = (self.tune_trials, self.deep_tune_trials, self.start_tune_trials)
        if min(trials) < 0:
            raise ValueError(f"tune_trials, deep_tune_trials and start_tune_trials ≥ 0, given {trials}")
        if not self.race or self.race[0] < 4 or any(b <= a for a, b in itertools.pairwise(self.race)):
            raise ValueError(f"race: one or more ascending numbers of pairs, from 4; given {list(self.race)}")
