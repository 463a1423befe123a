"""Judges replies of a model one by one: from text to a module, to a verdict, in bounded time, whatever the reply is.

This is what rewards and other judges of single replies are made of. It owns one evaluator for as many tasks as come along, and is a
plain class that also runs as a Ray actor (`evo.cluster.judging_pool`).
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from evo.errors import DeviceError, InputError, TritonEvolveError
from evo.evaluation.base import Baseline, Evaluator, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.transcript import can_transcribe
from evo.records import Evaluation, Stage, Status, TrustLevel, Variant, content_id
from evo.registry import EvaluatorFactory
from evo.tasks.base import Task
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.imports import ALLOWED_IMPORTS, foreign_imports
from operators.likeness import normal_form
from operators.prompting import UnusableReplyError
from operators.replies import module_of

T = TypeVar("T")

ATTEMPTS = 2
"""An evaluator that fails is replaced, once: what fails a new one as well is a fault of this machine."""

_unhosted = partial(build_evaluator, hosting=False)
"""What cannot be traced has no plan that could be judged, so it need not be run."""

THREADS = 64
"""Replies in hand at a time, at most; the evaluator's own concurrency decides how many are judged."""

THOUGHT = "</think>"
"""Where a model's reasoning ends, in replies that have it in their text."""


@dataclass(frozen=True)
class Submission:
    """One reply to judge.

    Attributes:
        task: Name or path of the task, as `evo.tasks.loading.load_task` takes it.
        reply: All that the model said.
        baseline: Source of the module that speedups are measured against; empty for the task's tuned starting kernels, if it has any.
        shown: Sources that the prompt showed as work to improve or mend; edits are of the first one. None of them is an answer.
        known: Plan hashes of kernels that are no answer either; those of `shown` are found here as well.
    """

    task: str
    reply: str
    baseline: str = ""
    shown: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judged:
    """What came of a submission: a verdict, or the reason why this machine could give none."""

    evaluation: Evaluation | None
    problem: str = ""


class Unjudgeable(TritonEvolveError):
    """This machine cannot judge the submission, whatever its reply is."""


class Judging:
    """Thread-safe.

    Args:
        device: ``gpu``, or ``cpu:TARGET``, where kernels are interpreted and latencies are estimates.
        settings: See `EvaluationSettings`.
        deadline_s: Wall seconds per verdict, baselines apart; the deadlines in `settings` end a candidate before that, as a rule.
        build: Makes the evaluator, from tasks, settings and device.
    """

    def __init__(self, device: str, settings: EvaluationSettings, deadline_s: float, build: EvaluatorFactory = _unhosted) -> None:
        self._device, self._settings, self._deadline_s, self._build = device, settings, deadline_s, build
        self._tasks: dict[str, Task] = {}
        self._references: dict[str, Task | InputError] = {}
        self._baselines: dict[str, Future[Baseline]] = {}
        self._plans: dict[str, Future[frozenset[str]]] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="judging")
        self._lock = threading.Lock()
        self._generation = 0
        self._evaluator: Evaluator | None = None
        self._slots = threading.BoundedSemaphore(1)

    def judge(self, submission: Submission) -> Judged:
        """The verdict. Never raises: a hostile reply is a failed one, and a fault of this machine is told as `problem`."""
        for attempt in range(1, ATTEMPTS + 1):
            generation = self._generation
            try:
                return Judged(self._judged(submission))
            except (InputError, Unjudgeable) as error:
                return Judged(None, _line(error))
            except Exception as error:  # noqa: BLE001  whatever the machine fails with must not end who asks
                self._replace(generation)
                if attempt == ATTEMPTS:
                    return Judged(None, _line(error))
        raise AssertionError("every attempt returns or is followed by another")

    def close(self) -> None:
        """Ends the evaluator's processes. Idempotent."""
        self._replace(self._generation)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _judged(self, submission: Submission) -> Evaluation:
        task = self._task(submission.task)
        base = submission.shown[0] if submission.shown else None
        try:
            source = module_of(submission.reply.rpartition(THOUGHT)[2], task.entry, base)
        except UnusableReplyError as error:
            return self._refused(Variant(task.name, ""), f"the reply cannot be used: {error}", "reply")
        variant = Variant(task.name, source)
        foreign = foreign_imports(source)
        if foreign:
            text = f"the module imports {', '.join(foreign)}; allowed: {', '.join(sorted(ALLOWED_IMPORTS))}"
            return self._refused(variant, text, "imports")
        if any(source == other or _form(source) == _form(other) for other in submission.shown):
            return self._refused(variant, "the reply is the module that was shown", "repeat")
        return self._evaluated(task, variant, submission)

    def _evaluated(self, task: Task, variant: Variant, submission: Submission) -> Evaluation:
        with self._slot() as (evaluator, generation):
            # What nothing stands against has a verdict, and no speedup.
            compared = self._device == "gpu" and bool(submission.baseline or task.starting_kernels)
            baseline = self._baseline(evaluator, task, submission.baseline) if compared else None
            item = WorkItem(zlib.crc32(variant.variant_id.encode()), variant, baseline)
            claim = dict.fromkeys(submission.known, "shown")
            for source in submission.shown:  # plan hashes differ by Triton and target, and who asks may have given none
                claim |= dict.fromkeys(self._plans_of(evaluator, task, source), "shown")
            done = self._threads.submit(evaluator.evaluate, item, lambda plan, _: claim.get(plan))
            try:
                verdict = done.result(self._deadline_s)
            except LateError:
                self._replace(generation)
                text = f"no verdict within {self._deadline_s:g} s"
                return Evaluation(
                    variant.variant_id,
                    Status.TIMEOUT,
                    Stage.GATE,
                    evaluator.device,
                    message=text,
                    signature="timeout:gate:judging",
                )
            if generation != self._generation and verdict.status is not Status.PASSED:
                raise DeviceError("the evaluator was ended under this candidate for the sake of another")
            if verdict.trust is TrustLevel.INTERPRETED and not can_transcribe(task):
                # They ran with their own Python, which could forge what they compute; that they failed is to be believed.
                raise Unjudgeable(
                    f"task {task.name}: only on a GPU can modules with parameters and backward passes be found correct"
                )
            return verdict

    def _baseline(self, evaluator: Evaluator, task: Task, source: str) -> Baseline:
        sources = (source,) if source else starting_sources(task)
        return self._once(self._baselines, content_id(task.name, source), lambda: _tuned(evaluator, task, sources))

    def _plans_of(self, evaluator: Evaluator, task: Task, source: str) -> frozenset[str]:
        return self._once(self._plans, content_id(task.name, source), lambda: _traced(evaluator, task, source))

    def _once(self, made: dict[str, Future[T]], key: str, make: Callable[[], T]) -> T:
        """Made by whoever needs it first; the others wait."""
        with self._lock:
            found = made.get(key)
            mine = found is None
            if found is None:
                found = made[key] = Future()
        if mine:
            try:
                found.set_result(make())
            except BaseException as error:  # noqa: BLE001  everybody who waits is told, whatever it is
                with self._lock:
                    del made[key]  # what failed for the machine's sake may work the next time
                found.set_exception(error)
        return found.result()

    def _task(self, reference: str) -> Task:
        with self._lock:
            found = self._references.get(reference)
            if found is None:
                try:
                    found = load_task(reference)
                except InputError as error:
                    found = error
                self._references[reference] = found
        if isinstance(found, InputError):
            raise found
        if self._tasks.setdefault(found.name, found).path != found.path:
            raise Unjudgeable(f"task {found.name}: two task files have that name; rename one")
        return found

    @contextlib.contextmanager
    def _slot(self) -> Iterator[tuple[Evaluator, int]]:
        with self._lock:
            if self._evaluator is None:
                self._evaluator = self._build(self._tasks, self._settings, self._device)
                self._slots = threading.BoundedSemaphore(self._evaluator.concurrency)
            evaluator, slots, generation = self._evaluator, self._slots, self._generation
        with slots:
            yield evaluator, generation

    def _replace(self, generation: int) -> None:
        """Ends the evaluator of that generation; whoever waits for it tries again with the next one."""
        with self._lock:
            if generation != self._generation:
                return
            self._generation += 1
            broken, self._evaluator = self._evaluator, None
        if broken is not None:
            broken.close()

    def _refused(self, variant: Variant, message: str, kind: str) -> Evaluation:
        signature = f"{Status.REJECTED.value}:{Stage.LINT.value}:{kind}"
        device = self._device.removeprefix("cpu:")
        return Evaluation(variant.variant_id, Status.REJECTED, Stage.LINT, device, message=message, signature=signature)


def _tuned(evaluator: Evaluator, task: Task, sources: tuple[str, ...]) -> Baseline:
    """The fastest of some modules in their best configurations."""
    verdicts = {source: evaluator.evaluate(WorkItem(0, Variant(task.name, source), None), _nobody) for source in sources}
    passed = {source: verdict for source, verdict in verdicts.items() if verdict.status is Status.PASSED}
    if not passed:
        reasons = "; ".join(verdict.message for verdict in verdicts.values())
        raise Unjudgeable(f"task {task.name}: what speedups are measured against does not pass: {reasons}")
    source = min(passed, key=lambda key: passed[key].latency_us)
    return Baseline(Variant(task.name, source), {case.case: case.configuration for case in passed[source].cases})


def _traced(evaluator: Evaluator, task: Task, source: str) -> frozenset[str]:
    """Plan hashes of a module on this machine; it is not run."""
    plans: set[str] = set()

    def claim(plan_hash: str, variant_id: str) -> str:
        plans.add(plan_hash)
        return "shown"

    evaluator.evaluate(WorkItem(0, Variant(task.name, source), None), claim)
    return frozenset(plans)


def _nobody(plan_hash: str, variant_id: str) -> None:
    """A claim that always succeeds."""


def _form(source: str) -> str:
    return normal_form(source) or source


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:500]
