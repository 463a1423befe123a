"""The tuning rung of a climb: times what a tuner asks for while what it will ask next is compiled, and gives up early what is hopeless.

Cases of equal dtypes form a group with one tuner: each configuration is timed on all cases of its group, and each case keeps its own best.
Kernels that do not depend on the case are then compiled once for all of them. Two generations of configurations are under way per
group, one being timed, one being compiled: what a generation asks for depends on the answers to all but the one before it, and not on
who is ready first, so that equal answers give equal questions.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evo.evaluation.tier import Candidate
from evo.evaluation.tuning import Tuner
from evo.evaluation.tuning_prior import guessed, probes
from evo.evaluation.tuning_studies import PRUNED, answer_of
from evo.evaluation.turns import Turns
from evo.knobs import Knobs
from evo.records import Configuration, Failure, Status, Trial
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.workbench import Job, Outer, Prepared

GENERATION = 1
"""Configurations of a group that are asked for at a time. More would be prepared side by side, and chosen worse; other climbs use the
cores meanwhile."""
AHEAD = 2
"""Generations of a group under way: one timed, the others compiled. At first there are as many as need no answer to be asked for."""
WORTH = 1.2
"""Ratio to the best of a case beyond which a latency need not be known well."""
HOPELESS = 3.0
"""Ratio to the best of a case beyond which a configuration is not tried on the other cases of its group."""
CONTEST = 1.02
FINALISTS = 3
"""So many of the fastest configurations of a case, if within this ratio of its best, are timed once more before one is chosen."""

Finish = Callable[[Sequence[Job], Sequence[Outer]], list[Prepared | Failure]]
"""Waits for prepared jobs."""


@dataclass(frozen=True)
class Preparation:
    """How jobs are traced and compiled.

    Attributes:
        start: Begins it and returns at once.
        finish: Waits for what `start` gave.
        job: The job of a case in a configuration.
        probe: The same without compilation, for a guess of what is fast; None: tuning begins without one.
    """

    start: Callable[[Sequence[Job]], Sequence[Outer]]
    finish: Finish
    job: Callable[[Case, Configuration], Job]
    probe: Callable[[Case, Configuration], Job] | None = None


@dataclass(frozen=True)
class History:
    """What was found before, and who hears of what is found now.

    Attributes:
        known: Trials of an interrupted tuning of the same variant on the same device: questions that they answer are not timed again. As
            equal answers give equal questions, tuning goes on where it was.
        heard: Called with the trials of each configuration that was not known, as soon as they are there.
    """

    known: Sequence[Trial] = ()
    heard: Callable[[Sequence[Trial]], None] | None = None


@dataclass(frozen=True)
class Probes:
    """Traces under way that a tuner's guess will be made of."""

    configurations: tuple[Configuration, ...]
    jobs: tuple[Job, ...]
    futures: Sequence[Outer]


@dataclass(frozen=True)
class Generation:
    """Configurations of one group under way."""

    tuner: Tuner
    asked: tuple[Configuration, ...]
    jobs: tuple[Job, ...]
    futures: Sequence[Outer]


class TuningRung:
    """Tunes one variant on all training cases.

    Args:
        task: Whose cases.
        knobs: Of the variant.
        hints: Configurations to start from.
        seed: Of the tuners.
        tier: Where candidates are timed.
        preparation: See `Preparation`.
        history: See `History`.
    """

    def __init__(
        self,
        task: Task,
        knobs: Knobs,
        hints: Sequence[Configuration],
        seed: int,
        tier: Turns,
        preparation: Preparation,
        history: History = History(),
    ) -> None:
        self._task, self._tier, self._preparation = task, tier, preparation
        self._heard = history.heard
        self._known: dict[Configuration, dict[str, Trial]] = {}
        for trial in history.known:
            self._known.setdefault(trial.configuration, {})[trial.case] = trial
        self._cases = {case.name: case for case in task.training_cases}
        self.tuners = tuple(
            Tuner(knobs.space, knobs.default, hints, 0, seed + index, [case.name for case in group])
            for index, group in enumerate(case_groups(task.training_cases))
        )
        self.trials: list[Trial] = []
        """Every configuration tried per case, in an order that answers alone determine."""
        self._timed: dict[str, dict[Configuration, float]] = {name: {} for name in self._cases}
        self._candidates: dict[tuple[str, Configuration], Candidate] = {}
        self._probes: dict[int, Probes] = {}

    def run(self, trials: int) -> None:
        """Tunes until `trials` configurations of each group are timed; called again with more it goes on."""
        for tuner in self.tuners:
            tuner.extend(trials)
        under_way: deque[Generation] = deque()
        try:
            for place, tuner in enumerate(self.tuners):
                self._probe(place, tuner, trials)
            for _ in range(max([AHEAD, *(tuner.given for tuner in self.tuners)])):
                for tuner in self.tuners:
                    self._ask(tuner, under_way)
            while under_way:
                generation = under_way.popleft()
                self._answer(generation)
                if sum(other.tuner is generation.tuner for other in under_way) < AHEAD:
                    self._ask(generation.tuner, under_way)
        finally:
            begun = [generation.futures for generation in under_way] + [probing.futures for probing in self._probes.values()]
            for future in itertools.chain.from_iterable(begun):
                future.cancel()
            self._probes.clear()

    def ranked(self, case: Case) -> list[tuple[float, Candidate]]:
        """What was timed on a case, fastest first; near contenders were timed twice and count by their mean. Of what was known before,
        the first few are compiled and the others left out."""
        ordered = sorted(self._timed[case.name].items(), key=lambda pair: pair[1])
        for configuration, _ in ordered[:FINALISTS]:
            self._compiled(case, configuration)
        held = [(latency, (case.name, configuration)) for configuration, latency in ordered]
        timed = [(latency, self._candidates[key]) for latency, key in held if key in self._candidates]
        contenders = [pair for pair in timed[:FINALISTS] if pair[0] <= CONTEST * timed[0][0]]
        if len(contenders) < 2:
            return timed
        again = []
        for latency, candidate in contenders:
            second = self._tier.latency_us(self._task, candidate)
            again.append((math.inf if isinstance(second, Failure) else math.sqrt(latency * second), candidate))
        return sorted(again, key=lambda pair: pair[0]) + timed[len(contenders) :]

    def best_us(self) -> Mapping[str, float]:
        """Case → the least latency seen, in microseconds, of the cases where anything ran."""
        return {case: min(timed.values()) for case, timed in self._timed.items() if timed}

    def _probe(self, place: int, tuner: Tuner, trials: int) -> None:
        """Begins the traces of a tuner's guess, where it will have something to choose."""
        make = self._preparation.probe
        if make is None or tuner.guess is not None or place in self._probes or min(trials, tuner.space.size) <= tuner.given:
            return
        if trials >= tuner.space.size:
            return  # everything will be tried, in whatever order
        case = max((self._cases[name] for name in tuner.cases), key=lambda item: item.bytes)
        configurations = tuple(probes(tuner.space))
        jobs = tuple(make(case, configuration) for configuration in configurations)
        self._probes[place] = Probes(configurations, jobs, self._preparation.start(jobs))

    def _guess(self, tuner: Tuner) -> None:
        """Waits for the traces, once the declared configuration and the hints are asked for."""
        begun = self._probes.pop(self.tuners.index(tuner), None) if not tuner.given else None
        if begun is None:
            return
        traced = self._preparation.finish(begun.jobs, begun.futures)
        plans = {conf: item.plan for conf, item in zip(begun.configurations, traced, strict=True) if isinstance(item, Prepared)}
        tuner.guess = guessed(tuner.space, plans)

    def _ask(self, tuner: Tuner, under_way: deque[Generation]) -> None:
        self._guess(tuner)
        asked = tuple(tuner.ask_batch(GENERATION))
        if asked:
            new = [item for item in asked if item not in self._known]
            jobs = tuple(self._preparation.job(self._cases[name], item) for item in new for name in tuner.cases)
            under_way.append(Generation(tuner, asked, jobs, self._preparation.start(jobs) if jobs else ()))

    def _answer(self, generation: Generation) -> None:
        tuner = generation.tuner
        prepared = iter(self._preparation.finish(generation.jobs, generation.futures) if generation.jobs else ())
        # Of answers given before this generation, so that its own order does not matter.
        bests = {name: best[1] for name in tuner.cases if (best := tuner.best_of(name)) is not None}
        for configuration in generation.asked:
            if configuration in self._known:
                trials = [trial for name, trial in self._known[configuration].items() if name in tuner.cases]
            else:
                trials = self._tried(configuration, {name: next(prepared) for name in tuner.cases}, bests)
                if self._heard is not None:
                    self._heard(trials)
            for trial in trials:
                if trial.latency_us is not None:
                    self._timed[trial.case][configuration] = trial.latency_us
            self.trials += trials
            tuner.tell_cases(answer_of(configuration, trials))

    def _tried(
        self, configuration: Configuration, items: Mapping[str, Prepared | Failure], bests: Mapping[str, float]
    ) -> list[Trial]:
        trials = []
        for name, item in items.items():
            best = bests.get(name, math.inf)
            latency = self._latency(name, configuration, item, WORTH * best)
            if isinstance(latency, Failure):
                trials.append(Trial(name, configuration, latency.status, None, latency.message[:500]))
                continue
            trials.append(Trial(name, configuration, Status.PASSED, latency, PRUNED if latency > WORTH * best else ""))
            if latency > HOPELESS * best:
                break
        return trials

    def _latency(self, name: str, configuration: Configuration, item: Prepared | Failure, worth_us: float) -> float | Failure:
        if isinstance(item, Failure):
            return item
        job = self._preparation.job(self._cases[name], configuration)
        candidate = Candidate(job.source, job.case, configuration, item.plan, item.binaries)
        latency = self._tier.latency_us(self._task, candidate, worth_us)
        if not isinstance(latency, Failure):
            self._candidates[name, configuration] = candidate
        return latency

    def _compiled(self, case: Case, configuration: Configuration) -> None:
        """Prepares what an earlier tuning timed; what cannot be prepared any more is chosen no more."""
        if (case.name, configuration) in self._candidates:
            return
        job = self._preparation.job(case, configuration)
        (item,) = self._preparation.finish([job], self._preparation.start([job]))
        if isinstance(item, Prepared):
            self._candidates[case.name, configuration] = Candidate(job.source, case, configuration, item.plan, item.binaries)


def case_groups(cases: Sequence[Case]) -> tuple[tuple[Case, ...], ...]:
    """Cases whose tensors have equal dtypes and ranks: their best configurations have most in common."""
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        kind = tuple((item.dtype, len(item.shape)) for item in case.arguments if isinstance(item, TensorSpec))
        groups.setdefault(kind, []).append(case)
    return tuple(map(tuple, groups.values()))
