"""One variant on its way up the ladder, whatever the tier: lint → trace → duplicate? → gate → tune → gate again → time."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from evo.errors import DeviceError
from evo.evaluation.base import Baseline, Claim, Effort, Heard, WorkItem
from evo.evaluation.device_use import device_use
from evo.evaluation.draws import choose_draws
from evo.evaluation.examination import Examination
from evo.evaluation.failed import Failed
from evo.evaluation.form import Forms
from evo.evaluation.racing import CaseRace, race
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.stages import StageClock
from evo.evaluation.tier import Candidate, Checked
from evo.evaluation.tuning_rung import History, Preparation, TuningRung
from evo.evaluation.turns import Turns
from evo.knobs import Knobs, narrowed, read_knobs
from evo.records import CaseResult, Configuration, Evaluation, Failure, Stage, Status, Trial, content_id
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.tracer import lint
from evo.tracing.workbench import Job, Outer, Prepared, Workbench

NEAR_FRONT = 0.95
"""Share of the best speedup of the task from which on a quick tune is followed by a deep one."""
NEWCOMER = 1
"""Priority of a variant's first traces: work of variants that are further up comes first, since the device is nearer to waiting for it."""
REGATE_ATTEMPTS = 3
"""How many of the fastest configurations may fail the gate before the variant does."""


class Climb:
    """One variant on its way up."""

    def __init__(
        self,
        task: Task,
        item: WorkItem,
        settings: EvaluationSettings,
        tier: Turns,
        bench: Workbench,
        clock: StageClock,
        forms: Forms,
        heard: Heard | None = None,
    ) -> None:
        self._task, self._item, self._settings, self._tier, self._bench = task, item, settings, tier, bench
        self._clock, self._forms, self._heard = clock, forms, heard
        self._source = item.variant.source
        self._plan_hash = ""
        self._trials: list[Trial] = []
        self._errors: dict[str, Checked] = {}
        self._gated: dict[Configuration, Checked] = {}

    def search(self, claim: Claim) -> Evaluation:
        """All rungs, with tuning."""
        knobs = self._lint()
        defaults = self._trace_defaults(knobs, claim)
        if isinstance(defaults, Evaluation):
            return defaults
        cases = self._tier.gate_cases(self._task)
        self._gate(cases, {}, knobs)
        if self._errors:
            self._gated[knobs.default] = _worst(self._errors)
        chosen = self._tune(knobs)
        for case in cases:
            if case.name not in self._errors:  # the declared configuration does not fit it: the one it would run in must
                self._check(self._candidate(case, chosen[self._task.nearest_training_case(case).name].configuration))
        timed = {case: chosen[case.name] for case in self._task.training_cases}
        return self._time(timed, self._settings.race, self._item.incumbent)

    def verify(self, examinations: Sequence[Examination]) -> Evaluation:
        """Fresh workers that no other climb uses, held-out cases, given configurations, the full number of pairs; then examinations."""
        knobs = self._lint()
        cases = (*self._tier.gate_cases(self._task), *self._held_out())
        chosen = {case: self._candidate(case, self._chosen(case, knobs)) for case in self._task.training_cases}
        self._plan_hash = content_id(*(candidate.plan.plan_hash for candidate in chosen.values()))
        # Remembered by the workbench, so that nothing is traced or compiled while the device is held.
        self._prepare([self._job(case, self._chosen(case, knobs), self._tier.gates_on_binaries) for case in cases])
        with self._tier.fresh():
            self._gate(cases, self._item.chosen, knobs)
            evaluation = self._time(chosen, self._settings.race[-1:], 0.0)
            conditions = self._tier.conditions()
        checks = [conditions] if conditions else []
        candidates = [self._candidate(case, self._chosen(case, knobs)) for case in cases]
        with self._tier.examining(), ThreadPoolExecutor(max(1, len(examinations))) as threads:
            for found in threads.map(lambda examination: examination.examine(self._task, candidates), examinations):
                if isinstance(found, Failure):
                    raise Failed(found)
                checks += found
        return dataclasses.replace(evaluation, checks=tuple(checks))

    def failed(self, failure: Failure) -> Evaluation:
        """The verdict for a failing rung."""
        return Evaluation(
            self._item.variant.variant_id, failure.status, failure.stage, self._tier.device, plan_hash=self._plan_hash,
            message=failure.message, signature=failure.signature, trials=tuple(self._trials),
        )  # fmt: skip

    def _lint(self) -> Knobs:
        problem = lint(self._source, self._task.entry)
        if problem is not None:
            raise Failed(problem)
        return narrowed(read_knobs(self._source), self._task.knobs)

    def _held_out(self) -> tuple[Case, ...]:
        return self._task.held_out_cases if self._tier.gates_on_binaries else ()

    def _trace_defaults(self, knobs: Knobs, claim: Claim) -> Evaluation | None:
        # All cases at once, as the gate will want them: those of one module are traced in one process.
        cases = tuple(dict.fromkeys((*self._task.training_cases, *self._tier.gate_cases(self._task))))
        jobs = [self._job(case, knobs.default, binaries=False) for case in cases]
        traced = [self._good(item) for item in self._prepare(jobs, priority=NEWCOMER)]
        prepared = traced[: len(self._task.training_cases)]
        self._plan_hash = searched_hash([item.plan.plan_hash for item in prepared], knobs)
        owner = claim(self._plan_hash, self._item.variant.variant_id)
        if owner is None or owner == self._item.variant.variant_id:
            return None
        return Evaluation(
            self._item.variant.variant_id, Status.DUPLICATE, Stage.TRACE, self._tier.device, plan_hash=self._plan_hash,
            message=f"launches the same plans as {owner}", duplicate_of=owner,
        )  # fmt: skip

    def _gate(self, cases: Sequence[Case], chosen: Mapping[str, Configuration], knobs: Knobs) -> None:
        """Checks cases in their chosen or default configuration; configurations that do not fit are left to tuning."""
        configurations = [self._chosen(case, knobs) if chosen else knobs.default for case in cases]
        jobs = [self._job(case, conf, self._tier.gates_on_binaries) for case, conf in zip(cases, configurations, strict=True)]
        candidates = []
        for job, item in zip(jobs, self._prepare(jobs), strict=True):
            if isinstance(item, Failure):
                if knobs.size > 1 and not chosen and item.stage is Stage.COMPILE:
                    continue  # the declared configuration does not fit this case; tuning looks for one that does
                raise Failed(item)
            candidates.append(_candidate(job, item))
        checks = self._tier.check_all(self._task, [(candidate, self._draws(candidate.case)) for candidate in candidates])
        if isinstance(checks, Failure):
            raise Failed(checks)
        for candidate, checked in zip(candidates, checks, strict=True):
            self._remember(candidate.case, checked)

    def _check(self, candidate: Candidate) -> None:
        checked = self._tier.check(self._task, candidate, self._draws(candidate.case))
        if isinstance(checked, Failure):
            raise Failed(checked)
        self._remember(candidate.case, checked)

    def _prepare(self, jobs: Sequence[Job], priority: int = 0) -> list[Prepared | Failure]:
        """Traced and compiled, and told to the tier."""
        futures = self._bench.submit(jobs, priority=priority)
        try:
            return self._finish(jobs, futures)
        finally:
            for future in futures:
                future.cancel()

    def _finish(self, jobs: Sequence[Job], futures: Sequence[Outer]) -> list[Prepared | Failure]:
        """Waits for what the workbench was given, and tells the tier."""
        with self._clock.stage("prepare"):
            prepared = [self._formed(job, future.result()) for job, future in zip(jobs, futures, strict=True)]
        pairs = zip(jobs, prepared, strict=True)
        self._tier.announce([_candidate(job, item) for job, item in pairs if isinstance(item, Prepared) and item.binaries])
        return prepared

    def _formed(self, job: Job, item: Prepared | Failure) -> Prepared | Failure:
        """A plan whose results have not the form of the reference's is a failure."""
        return item if isinstance(item, Failure) else self._forms.failure(self._task, job.case, item.plan) or item

    def _draws(self, case: Case) -> tuple[Draw, ...]:
        return choose_draws(self._task, case, self._item.effort, self._tier.gates_on_binaries)

    def _remember(self, case: Case, checked: Checked) -> None:
        self._errors[case.name] = checked

    def _tune(self, knobs: Knobs) -> dict[str, Candidate]:
        """The best gated configuration per training case."""
        settings, baseline = self._settings, self._item.baseline
        trials = settings.start_tune_trials if baseline is None else settings.tune_trials
        if trials == 0 or knobs.size == 1:
            return self._declared(knobs)
        seed = settings.seed * 1_000_003 + self._item.number
        preparation = Preparation(
            self._bench.submit,
            self._finish,
            job=lambda case, conf: self._job(case, conf, binaries=True),
            probe=lambda case, conf: self._job(case, conf, binaries=False),
        )
        heard = partial(self._heard, self._item.number) if self._heard is not None else None
        history = History(self._item.known, heard)
        rung = TuningRung(self._task, knobs, self._hints(knobs), seed, self._tier, preparation, history)
        try:
            rung.run(trials)
            if settings.deep_tune_trials > trials and knobs.size > trials and self._nears_the_front(rung):
                self._clock.count("deep tunes")
                rung.run(settings.deep_tune_trials)
        finally:
            self._trials += rung.trials
        return {case: self._best(self._task.case(case), rung, knobs) for case in (c.name for c in self._task.training_cases)}

    def _nears_the_front(self, rung: TuningRung) -> bool:
        """Whether a quick tune came so near to the best variant there is that a deep one may make it better."""
        baseline, bests = self._item.baseline, rung.best_us()
        if baseline is None or not self._item.front or len(bests) < len(self._task.training_cases):
            return False
        gains = []
        for case in self._task.training_cases:
            theirs = self._tier.latency_us(self._task, self._reference(case, baseline))
            if isinstance(theirs, Failure):
                return False
            gains.append(math.log(theirs / bests[case.name]))
        return math.exp(math.fsum(gains) / len(gains)) >= NEAR_FRONT * self._item.front

    def _declared(self, knobs: Knobs) -> dict[str, Candidate]:
        """The declared configuration everywhere: it is gated already, and no latency has to choose it."""
        jobs = [self._job(case, knobs.default, binaries=True) for case in self._task.training_cases]
        prepared = [self._good(item) for item in self._prepare(jobs)]
        return {job.case.name: _candidate(job, item) for job, item in zip(jobs, prepared, strict=True)}

    def _best(self, case: Case, rung: TuningRung, knobs: Knobs) -> Candidate:
        """The fastest configuration that passes the gate itself, so that tuning never wins with a wrong kernel."""
        tried = rung.ranked(case)
        if not tried:
            last = next((trial for trial in reversed(self._trials) if trial.case == case.name), None)
            text = f"no configuration fits case {case.name}: {last.message if last else 'none was tried'}"
            status = last.status if last is not None else Status.OUT_OF_RESOURCES
            raise Failed(Failure(status, Stage.COMPILE, text, f"{status.value}:no configuration"))
        problem: Failure | None = None
        for _, candidate in tried[:REGATE_ATTEMPTS]:
            problem = self._regate(candidate, knobs)
            if problem is None:
                return candidate
            self._trials.append(Trial(case.name, candidate.configuration, problem.status, None, problem.message[:500]))
        assert problem is not None
        raise Failed(problem)

    def _regate(self, candidate: Candidate, knobs: Knobs) -> Failure | None:
        if candidate.configuration == knobs.default and candidate.case.name in self._errors:
            return None
        cases = self._tier.gate_cases(self._task)
        if candidate.case not in cases and candidate.configuration in self._gated:
            return None
        if candidate.case in cases:
            checked = self._tier.check(self._task, candidate, self._draws(candidate.case))
            if isinstance(checked, Checked):
                self._remember(candidate.case, checked)
            return checked if isinstance(checked, Failure) else None
        configuration = candidate.configuration
        jobs = [self._job(case, configuration, self._tier.gates_on_binaries) for case in cases]
        candidates = []
        for job, item in zip(jobs, self._prepare(jobs), strict=True):
            if isinstance(item, Failure):
                return item
            candidates.append(_candidate(job, item))
        checks = self._tier.check_all(self._task, [(candidate, self._draws(candidate.case)) for candidate in candidates])
        if isinstance(checks, Failure):
            return checks
        self._gated[configuration] = max(checks, key=lambda checked: checked.error_ratio)
        return None

    def _time(self, chosen: Mapping[Case, Candidate], levels: Sequence[int], incumbent: float) -> Evaluation:
        baseline = self._item.baseline
        if baseline is None or (baseline.variant == self._item.variant and self._item.effort is Effort.SEARCH):
            results, fitness = [self._own_baseline(case, candidate) for case, candidate in chosen.items()], 1.0
        else:
            sides = [(candidate, self._reference(case, baseline)) for case, candidate in chosen.items()]
            self._tier.announce([reference for _, reference in sides])
            raced = race(self._tier, self._task, sides, levels, incumbent)
            if isinstance(raced, Failure):
                raise Failed(raced)
            results = [self._result(*pair) for pair in zip(chosen.items(), raced.cases, strict=True)]
            fitness = raced.interval(self._item.number).low
        return Evaluation(
            self._item.variant.variant_id, Status.PASSED, Stage.TIME if self._item.effort is Effort.SEARCH else Stage.VERIFY,
            self._tier.device, plan_hash=self._plan_hash, trust=self._tier.trust, latency_kind=self._tier.latency_kind,
            fitness=fitness, cases=tuple(results), trials=tuple(self._trials),
        )  # fmt: skip

    def _own_baseline(self, case: Case, candidate: Candidate) -> CaseResult:
        latency = self._tier.latency_us(self._task, candidate)
        if isinstance(latency, Failure):
            raise Failed(latency)
        return CaseResult(
            *self._common(case, candidate), latency, latency, 1.0, 1.0, 1.0, 0, self._peak_bytes(case, candidate),
            **device_use(candidate.plan, candidate.binaries, case, self._settings.target),
        )  # fmt: skip

    def _result(self, chosen: tuple[Case, Candidate], raced: CaseRace) -> CaseResult:
        case, candidate = chosen
        interval = raced.interval(self._item.number)
        ratios = raced.log_ratios
        return CaseResult(
            *self._common(case, candidate), raced.latency_us, raced.baseline_us, interval.point, interval.low, interval.high,
            len(ratios), self._peak_bytes(case, candidate), ratios,
            **device_use(candidate.plan, candidate.binaries, case, self._settings.target),
        )  # fmt: skip

    def _common(self, case: Case, candidate: Candidate) -> tuple[str, Configuration, float]:
        checked = self._errors.get(case.name) or self._gated.get(candidate.configuration) or _worst(self._errors)
        return case.name, candidate.configuration, checked.error_ratio

    def _peak_bytes(self, case: Case, candidate: Candidate) -> int:
        """Measured where the case itself was run, else what the plan allocates."""
        checked = self._errors.get(case.name)
        return checked.peak_bytes if checked is not None and self._tier.gates_on_binaries else candidate.plan.scratch_bytes

    def _candidate(self, case: Case, configuration: Configuration) -> Candidate:
        job = self._job(case, configuration, binaries=True)
        return _candidate(job, self._good(self._formed(job, self._bench.prepare([job])[0])))

    def _reference(self, case: Case, baseline: Baseline) -> Candidate:
        job = Job(baseline.variant.source, self._task, case, baseline.configurations[case.name])
        prepared = self._bench.prepare([job])[0]
        if isinstance(prepared, Failure) and prepared.status is Status.UNTRACEABLE:
            raise Failed(prepared)  # a hosted baseline: its children are hosted too, so that both sides are timed alike
        if isinstance(prepared, Failure):  # it was once: this says something of the machine, and nothing of the variant at hand
            raise DeviceError(f"the baseline of task {self._task.name} cannot be prepared any more: {prepared.message}")
        return _candidate(job, prepared)

    def _job(self, case: Case, configuration: Configuration, binaries: bool) -> Job:
        return Job(self._source, self._task, case, configuration, binaries)

    def _hints(self, knobs: Knobs) -> list[Configuration]:
        """What did well on relatives, then what the module's author thinks well of."""
        return [*(hint for hint in self._item.hints if set(hint) & set(knobs.space)), *knobs.hints]

    def _chosen(self, case: Case, knobs: Knobs) -> Configuration:
        return self._item.chosen.get(self._task.nearest_training_case(case).name, knobs.default)

    @staticmethod
    def _good(item: Prepared | Failure) -> Prepared:
        if isinstance(item, Failure):
            raise Failed(item)
        return item


def searched_hash(plan_hashes: Sequence[str], knobs: Knobs) -> str:
    """What a variant is to a search: its plans in the declared configuration, per training case, and what tuning may make of them."""
    return content_id(*plan_hashes, json.dumps({key: list(choices) for key, choices in sorted(knobs.space.items())}))


def _worst(checks: Mapping[str, Checked]) -> Checked:
    return max(checks.values(), key=lambda checked: checked.error_ratio)


def _candidate(job: Job, prepared: Prepared) -> Candidate:
    return Candidate(job.source, job.case, job.configuration, prepared.plan, prepared.binaries)
