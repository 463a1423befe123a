"""Chooses the configurations of one variant that are worth trying, on a group of cases at once; evaluates nothing.

One Optuna study per tuner. The declared configuration comes first, then hints (of relatives, authors, other devices), then what a
surrogate promises most (`evo.evaluation.tuning_surrogate`), which starts from a guess where there is one (`evo.evaluation.tuning_prior`),
every few trials a sample of Optuna's tree-structured Parzen estimator (Bergstra et al., 2011; multivariate, with constraints), which sees
the same study. Why this mixture: `experiments/tuning_synthetic.py`.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, Trial, TrialState

from evo.evaluation.tuning_space import Codes, Floats, KnobSpace
from evo.evaluation.tuning_surrogate import SLOWEST, Guess, Known, promises
from evo.records import Configuration, KnobValue

STARTUP_TRIALS = 4
"""Trials before TPE models anything; the declared configuration and the hints count."""

RESAMPLING_ATTEMPTS = 8
"""How often TPE may propose something known before the surrogate is asked instead."""

TPE_EVERY = 6
"""Every so many trials one is TPE's."""

_FEASIBLE = "feasible"


@dataclass(frozen=True)
class Answer:
    """What became of one configuration.

    Attributes:
        configuration: As it was asked.
        latencies_us: Case → microseconds, of the cases where it was timed; empty where it is infeasible on all of them.
        pruned: It was given up after a first look: its latencies are rough and far from the best, and it may not have been tried on all
            cases.
        unfit: Cases on which it cannot be run, where there are others.
    """

    configuration: Configuration
    latencies_us: Mapping[str, float]
    pruned: bool = False
    unfit: Collection[str] = ()

    @property
    def feasible(self) -> bool:
        """Whether it ran on any case."""
        return bool(self.latencies_us)


class Tuner:
    """Ask for configurations, tell their latencies; one `Tuner` per variant, device model and group of cases. Not thread-safe.

    What is asked for is a function of the arguments and of what was told before, whatever the order of answers between two questions: a
    tuning that was interrupted and is told the same answers again goes on as it would have. To have several trials under way, ask for a
    batch of them (`ask_batch`).

    Args:
        space: Knob → allowed values; knobs that it lacks keep the value of `default`.
        default: Assigns every knob; tried first.
        hints: Configurations to try next; values that the space does not allow are replaced by the nearest, or the default's.
        trials: Configurations to time in all, the default included (it is tried even if this is 0). As many again may turn out to be
            infeasible: they cost no time of the device.
        seed: Of the sampler.
        cases: Names of the cases that are tuned together; latencies are told for each.
        guess: What is thought of configurations before any trial (see `evo.evaluation.tuning_prior`); may be set until the first question
            beyond the declared configuration and the hints.

    Raises:
        ValueError: `trials` is negative, or `default` lacks a knob of the space or has a value outside of it.
    """

    def __init__(
        self,
        space: Mapping[str, tuple[KnobValue, ...]],
        default: Configuration,
        hints: Sequence[Configuration],
        trials: int,
        seed: int,
        cases: Sequence[str] = ("",),
        guess: Guess | None = None,
    ) -> None:
        if trials < 0:
            raise ValueError(f"trials must not be negative, given {trials}")
        self.space = KnobSpace(space, default)
        self.cases = tuple(cases)
        self._distributions = {
            name: _distribution(count, ordered)
            for name, count, ordered in zip(self.space.names, self.space.counts, self.space.ordered, strict=True)
        }
        self._first = list(dict.fromkeys([default, *(self.space.nearest(hint) for hint in hints)]))
        self._trials = max(1, trials)
        self._seed = seed % (1 << 63)
        self.guess = guess
        self._asked: dict[Configuration, Trial] = {}
        self._answers: dict[Configuration, Answer] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.study = optuna.create_study(direction="minimize", sampler=self._sampler(0))
        """Everything told so far, for Optuna's own analyses."""

    def ask(self) -> Configuration | None:
        """The next configuration, never one asked for before; None when all trials are asked for or the space is exhausted."""
        infeasible = sum(not answer.feasible for answer in self._answers.values())
        used = len(self._asked) - min(infeasible, self._trials)
        if used >= self._trials or len(self._asked) >= self.space.size:
            return None
        if self._first:
            return self._given(self._first.pop(0))
        if len(self._asked) % TPE_EVERY == TPE_EVERY - 1 and (sampled := self._sampled()) is not None:
            return sampled
        return self._given(self._promising())

    @property
    def given(self) -> int:
        """How many of the next questions are known whatever is answered: the declared configuration and the hints."""
        return len(self._first)

    def extend(self, trials: int) -> None:
        """Goes on until `trials` configurations are timed in all, where that is more than so far."""
        self._trials = max(self._trials, trials)

    def ask_batch(self, count: int) -> list[Configuration]:
        """Up to `count` configurations that differ, to be tried side by side; none when `ask` gives None."""
        batch: list[Configuration] = []
        while len(batch) < count and (configuration := self.ask()) is not None:
            batch.append(configuration)
        return batch

    def recall(self, answers: Sequence[Answer]) -> None:
        """Takes over the answers of an earlier tuning of the same variant on the same device, in order; they count as trials.

        Raises:
            ValueError: A configuration is outside of the space, or is known already.
        """
        for answer in answers:
            configuration = answer.configuration
            if configuration in self._asked or set(configuration) != set(self.space.default):
                raise ValueError(f"{configuration!r} is known already, or has other knobs than {', '.join(self.space.default)}")
            self.space.codes(configuration)
            self._first = [item for item in self._first if item != configuration]
            self._given(configuration)
            self.tell_cases(answer)

    def tell(self, configuration: Configuration, latency_us: float | None, feasible: bool) -> None:
        """`tell_cases` where there is one case.

        Raises:
            ValueError: The configuration is not open, or a latency is missing, not positive, or there without being feasible.
        """
        if feasible != (latency_us is not None):
            raise ValueError(f"{configuration!r}: a positive latency if and only if feasible, given {latency_us}, {feasible}")
        self.tell_cases(Answer(configuration, {} if latency_us is None else {self.cases[0]: latency_us}))

    def tell_cases(self, answer: Answer) -> None:
        """Records the answer to one question.

        Optuna is told of an infeasible configuration as a violated constraint: it then avoids the neighbourhood, where a failed trial would
        teach it nothing; of a pruned one as a pruned trial. The value of a trial is the geometric mean latency over cases.

        Raises:
            ValueError: The configuration is not open, a latency is not positive and finite, or is of an unknown case.
        """
        configuration, latencies = answer.configuration, answer.latencies_us
        if configuration not in self._asked or configuration in self._answers:
            raise ValueError(f"{configuration!r} was not asked for, or was told already")
        if not set(latencies) <= set(self.cases) or not all(0 < latency < math.inf for latency in latencies.values()):
            raise ValueError(f"{configuration!r}: positive latencies, on feasible cases of {self.cases}, given {dict(latencies)}")
        self._answers[configuration] = answer
        trial = self._asked[configuration]
        trial.set_user_attr(_FEASIBLE, answer.feasible)
        # Only the rank of a value matters to TPE, and infeasible trials are ranked by their violation alone.
        value = math.exp(float(np.mean(self._logs(answer)))) if answer.feasible else math.inf
        if answer.pruned and answer.feasible:
            trial.report(value, step=0)
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, value)

    @property
    def best(self) -> tuple[Configuration, float] | None:
        """`best_of` the first case."""
        return self.best_of(self.cases[0])

    def best_of(self, case: str) -> tuple[Configuration, float] | None:
        """The fastest configuration on a case, the earliest asked among equals, with its latency in microseconds."""
        answers = (self._answers[item] for item in self._asked if item in self._answers)
        timed = [(answer.configuration, answer.latencies_us[case]) for answer in answers if case in answer.latencies_us]
        return min(timed, key=lambda item: item[1], default=None)

    def _given(self, configuration: Configuration) -> Configuration:
        self.study.enqueue_trial(dict(zip(self.space.names, self.space.codes(configuration), strict=True)))
        self._asked[configuration] = self.study.ask(self._distributions)
        return configuration

    def _sampled(self) -> Configuration | None:
        """TPE's choice; None where it knows nothing new."""
        for attempt in range(RESAMPLING_ATTEMPTS):
            self.study.sampler = self._sampler(len(self._asked) * RESAMPLING_ATTEMPTS + attempt)
            trial = self.study.ask(self._distributions)
            configuration = self.space.configuration([trial.params[name] for name in self.space.names])
            if configuration not in self._asked:
                self._asked[configuration] = trial
                return configuration
            self.study.tell(trial, state=TrialState.FAIL)
        return None

    def _promising(self) -> Configuration:
        """What the surrogate promises most; with the declared configuration known to fail, and none to run, anything untried."""
        generator = np.random.default_rng([self._seed, len(self._asked)])
        # Until the first answer: what is far from the declared configuration does not depend on how fast that is.
        unknown = [(self.space.codes(self.space.default), np.zeros(len(self.cases)))] if not self._answers else []
        ranked = self._timed() or unknown
        asked = {self.space.codes(item) for item in self._asked}
        around = [codes for codes, _ in ranked[:5]]
        candidates = [codes for codes in self.space.candidates(generator, around) if codes not in asked]
        while not candidates:  # a large space, and all of a sample is known
            candidates = [codes for codes in self.space.candidates(generator, []) if codes not in asked]
        generator.shuffle(candidates)  # so that equals are not tried in order of their knobs
        if not ranked:
            return self.space.configuration(candidates[0])
        known = Known(
            [codes for codes, _ in ranked],
            np.stack([logs for _, logs in ranked]),
            [self.space.codes(item) for item in self._asked if item in self._answers and not self._answers[item].feasible],
            [self.space.codes(item) for item in self._asked if item not in self._answers],
        )
        return self.space.configuration(candidates[int(np.argmax(promises(self.space, known, candidates, self.guess)))])

    def _timed(self) -> list[tuple[Codes, Floats]]:
        """Configurations with latencies, fastest first."""
        answers = [self._answers[item] for item in self._asked if item in self._answers]
        rows = [(self.space.codes(answer.configuration), self._logs(answer)) for answer in answers if answer.feasible]
        return sorted(rows, key=lambda row: float(row[1].mean()))

    def _logs(self, answer: Answer) -> Floats:
        """Per case; one that was not tried is as much slower than the best as the others are, one that cannot be run is far behind."""
        known = {case: math.log(latency) for case, latency in answer.latencies_us.items()}
        bests = {case: math.log(best[1]) for case in self.cases if (best := self.best_of(case)) is not None}
        behind = float(np.mean([known[case] - bests.get(case, known[case]) for case in known]))
        usual = float(np.mean(list(known.values())))
        logs = [known.get(case, bests.get(case, usual) + (SLOWEST if case in answer.unfit else behind)) for case in self.cases]
        return np.asarray(logs)

    def _sampler(self, stream: int) -> optuna.samplers.TPESampler:
        seed = int(np.random.SeedSequence([self._seed, stream]).generate_state(1)[0])
        with warnings.catch_warnings():  # experimental in Optuna 4, spelt otherwise from 5 on: the one form that both have
            warnings.simplefilter("ignore")
            return optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=STARTUP_TRIALS, multivariate=True, constraints_func=_violation
            )


def _distribution(count: int, ordered: bool) -> BaseDistribution:
    return IntDistribution(0, count - 1) if ordered else CategoricalDistribution(tuple(range(count)))


def _violation(trial: FrozenTrial) -> tuple[float]:
    return (0.0 if trial.user_attrs.get(_FEASIBLE, False) else 1.0,)
