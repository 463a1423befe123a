"""Measures whole grids: compiles every configuration on all cores, gates each once, times each, and the fastest again."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.errors import BadDeviceError, DeviceError
from evo.evaluation.estimate import modelled_latency_us
from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.settings import EvaluationSettings
from evo.evaluation.tier import Candidate, Tier
from evo.records import Configuration, Failure, LatencyKind, Stage, Status
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw, Variation
from evo.tracing.plan import Launch
from evo.tracing.workbench import Job, Prepared, Workbench
from experiments.tuning.catalogue import Subject, configurations, knobs_of
from experiments.tuning.grid import PASSED, Entry, Grid, pooled_noise

AGAIN_SHARE, AGAIN_TIMES = 0.1, 5
"""The fastest tenth is timed so many times again, in turns, and only these count: the best is then no winner of noise."""
CHECKING = 3
"""Threads that check side by side, where the tier can."""
NOISE_PAIRS = 8


@dataclass(frozen=True)
class Place:
    """Where grids are measured."""

    tier: Tier
    bench: Workbench


@dataclass(frozen=True)
class Plan:
    """What to measure of each kernel.

    Attributes:
        values: At most so many values of each knob, None for all.
        gate: ``every`` configuration is gated, or only the ``declared`` one (for modelled grids, where the gate is an interpreter).
        seed: Of the inputs.
    """

    values: int | None = None
    gate: str = "every"
    seed: int = 0


@contextmanager
def opened(device: str, workers: int | None) -> Iterator[Place]:
    """A tier and a workbench for it; both are closed at the end.

    Args:
        device: ``gpu``, or ``cpu:TARGET`` for modelled latencies.
        workers: Cores to compile on; None for two less than there are, at most 14.

    Raises:
        DeviceError: ``gpu`` without a usable one.
    """
    settings = EvaluationSettings()
    count = workers or max(1, min(14, (os.cpu_count() or 2) - 2))
    if device == "gpu":
        from evo.evaluation.replay import ReplayTier  # imports torch's CUDA side

        replayed = ReplayTier(settings)
        bench = Workbench(replayed.capability, workers=count, compile_deadline_s=settings.compile_deadline_s)
        tier: Tier = replayed
    else:
        target = device.removeprefix("cpu:")
        bench = Workbench(target, workers=count, compile_deadline_s=settings.compile_deadline_s, sass=True)
        tier = InterpretedTier(target, deadline_s=settings.run_deadline_s, workbench=bench)
    bench.start()
    try:
        yield Place(tier, bench)
    finally:
        tier.close()
        bench.close()


@dataclass(frozen=True)
class Compiled:
    """A kernel's whole grid, compiled: what to time and, where another case is gated, what to gate; failures in their place."""

    subject: Subject
    task: Task
    jobs: tuple[Job, ...]
    prepared: tuple[Prepared | Failure, ...]
    gated: tuple[Candidate | Failure | None, ...]
    wall_s: float


def compile_grid(place: Place, subject: Subject, plan: Plan) -> Compiled:
    """Traces and compiles all configurations side by side."""
    task, case = subject.load()
    knobs = knobs_of(subject, plan.values)
    grid = configurations(knobs)
    begun = time.monotonic()
    jobs = tuple(Job(subject.source, task, case, configuration) for configuration in grid)
    prepared = {job.configuration: item for job, item in place.bench.prepare_each(jobs)}
    wall_s = time.monotonic() - begun
    small = gate_case(place.tier, task, case)
    wanted = [item for item in grid if plan.gate == "every" or item == knobs.default]
    gated: dict[Configuration, Candidate | Failure] = {}
    if small == case:
        gated = {
            item: Candidate(subject.source, case, item, found.plan, found.binaries)
            for item in wanted
            if isinstance(found := prepared[item], Prepared)
        }
    else:
        gate_jobs = [Job(subject.source, task, small, item, place.tier.gates_on_binaries) for item in wanted]
        for job, found in zip(gate_jobs, place.bench.prepare(gate_jobs), strict=True):
            gated[job.configuration] = (
                found
                if isinstance(found, Failure)
                else Candidate(job.source, small, job.configuration, found.plan, found.binaries)
            )
    return Compiled(subject, task, jobs, tuple(prepared[item] for item in grid), tuple(gated.get(item) for item in grid), wall_s)


def gate_case(tier: Tier, task: Task, case: Case) -> Case:
    """The case itself where the tier runs compiled kernels, else the smallest that computes something."""
    return case if tier.gates_on_binaries else min((item for item in task.small_cases if item.bytes), key=lambda item: item.bytes)


def measure_grid(place: Place, compiled: Compiled, plan: Plan, session: dict[str, Any]) -> Grid:
    """Gates and times what was compiled."""
    tier, task, case = place.tier, compiled.task, compiled.jobs[0].case
    knobs = knobs_of(compiled.subject, plan.values)
    candidates = {
        job.configuration: Candidate(job.source, case, job.configuration, item.plan, item.binaries)
        for job, item in zip(compiled.jobs, compiled.prepared, strict=True)
        if isinstance(item, Prepared)
    }
    tier.announce(list(candidates.values()))
    verdicts = gate_all(tier, task, compiled.gated, plan.seed)
    entries = []
    for job, item, (verdict, gate_s) in zip(compiled.jobs, compiled.prepared, verdicts, strict=True):
        failure = item if isinstance(item, Failure) else verdict
        if failure is not None:
            entries.append(Entry(job.configuration, failure.status.value, failure.message[:300], gate_s=gate_s))
            continue
        before = tier.gpu_s_of_thread
        latency = quick_latency(tier, task, candidates[job.configuration], plan)
        entry = timed(job.configuration, latency, gate_s, tier.gpu_s_of_thread - before)
        entries.append(with_resources(entry, candidates[job.configuration]))
    entries = timed_again(tier, task, entries, candidates)
    measured = tier.latency_kind is LatencyKind.MEASURED
    grid = Grid(
        compiled.subject.name, task.name, case.name, task.kind, tier.device, measured, knobs.space, knobs.default, tuple(entries),
        compile_s=compiled.wall_s * place.bench.workers, workers=place.bench.workers,
        noise=pooled_noise([entry.samples for entry in entries]), seed=plan.seed, session=session,
    )  # fmt: skip
    return with_noise_floor(tier, task, grid, candidates) if measured and grid.valid else grid


def with_resources(entry: Entry, candidate: Candidate) -> Entry:
    """An entry with what its configuration takes of the device."""
    resources = [binary.resources for binary in candidate.binaries]
    launches = [step for step in candidate.plan.steps.get("forward", ()) if isinstance(step, Launch)]
    return dataclasses.replace(
        entry,
        programs=max((math.prod(launch.grid) for launch in launches), default=0),
        registers=max((item.registers for item in resources), default=0),
        spill_bytes=max((item.spill_bytes for item in resources), default=0),
        shared_bytes=max((item.shared_bytes for item in resources), default=0),
    )


def quick_latency(tier: Tier, task: Task, candidate: Candidate, plan: Plan) -> float | Failure:
    """The tier's; where only the declared configuration is gated, the model alone, since the tier prepares interpretation first."""
    if isinstance(tier, InterpretedTier) and plan.gate == "declared":
        return modelled_latency_us(candidate.plan, candidate.binaries, candidate.case, tier.target)
    return tier.latency_us(task, candidate)


def gate_all(
    tier: Tier, task: Task, candidates: Sequence[Candidate | Failure | None], seed: int
) -> list[tuple[Failure | None, float]]:
    """The gate's objection to each, if it has one, and its GPU seconds."""
    draws = (Draw(seed, Variation.PLAIN),)

    def gate(candidate: Candidate | Failure | None) -> tuple[Failure | None, float]:
        if not isinstance(candidate, Candidate):
            return candidate, 0.0
        before = tier.gpu_s_of_thread
        checked = tier.check(task, candidate, draws)
        return (checked if isinstance(checked, Failure) else None), tier.gpu_s_of_thread - before

    with ThreadPoolExecutor(CHECKING if tier.overlaps else 1) as threads:
        return list(threads.map(gate, candidates))


def timed(configuration: Configuration, latency: float | Failure, gate_s: float, time_s: float) -> Entry:
    """The entry of a configuration that passed the gate."""
    if isinstance(latency, Failure):
        return Entry(configuration, latency.status.value, latency.message[:300], gate_s=gate_s, time_s=time_s)
    if not 0 < latency < math.inf:
        bad = Failure(Status.RUNTIME_ERROR, Stage.TIME, f"a latency of {latency} µs", "latency")
        return Entry(configuration, bad.status.value, bad.message, gate_s=gate_s, time_s=time_s)
    return Entry(configuration, PASSED, "", latency, (latency,), gate_s, time_s)


def timed_again(tier: Tier, task: Task, entries: list[Entry], candidates: dict[Configuration, Candidate]) -> list[Entry]:
    """The fastest are timed again, in turns so that drift meets all alike; what they were chosen by does not count."""
    if tier.latency_kind is not LatencyKind.MEASURED:
        return entries
    ranked = sorted((entry for entry in entries if entry.latency_us), key=lambda entry: entry.latency_us or math.inf)
    fastest = ranked[: math.ceil(AGAIN_SHARE * len(ranked))]
    samples: dict[Configuration, list[float]] = {entry.configuration: [] for entry in fastest}
    for _ in range(AGAIN_TIMES):
        for configuration, values in samples.items():
            latency = tier.latency_us(task, candidates[configuration])
            if not isinstance(latency, Failure):
                values.append(latency)
    return [
        dataclasses.replace(entry, latency_us=statistics.median(again), samples=tuple(again))
        if (again := samples.get(entry.configuration))
        else entry
        for entry in entries
    ]


def with_noise_floor(tier: Tier, task: Task, grid: Grid, candidates: dict[Configuration, Candidate]) -> Grid:
    """With the A/A noise of the fastest configuration; a device that refuses to be timed on costs no grid."""
    best = candidates[grid.best]
    try:
        compared = tier.compare(task, best, best, pairs=NOISE_PAIRS, incumbent=0.0)
    except DeviceError as error:
        return dataclasses.replace(grid, remark=f"no A/A noise: {error}")
    if isinstance(compared, Failure):
        return dataclasses.replace(grid, remark=f"no A/A noise: {compared.message[:200]}")
    floor = tier.noise_of(task, best.case)
    return dataclasses.replace(grid, noise_floor=floor.half_width if floor is not None else 0.0)


def measure(
    place: Place,
    wanted: Sequence[Subject],
    plan: Plan,
    folder: Path,
    session: dict[str, Any],
    until: float,
    tell: Callable[[str], None],
) -> None:
    """Measures grids and writes each as soon as it is there; the next compiles meanwhile.

    Args:
        place: See `opened`.
        wanted: In this order.
        plan: See `Plan`.
        folder: Gets grids/NAME.json.
        session: What it is measured with.
        until: `time.monotonic()` after which no kernel is begun that may not end in time.
        tell: Called with one line per kernel.
    """
    left = list(wanted)
    longest = 0.0
    with ThreadPoolExecutor(1) as compiling:
        ahead = compiling.submit(compile_grid, place, left[0], plan) if left else None
        for index, subject in enumerate(left):
            begun = time.monotonic()
            if longest and begun + longest > until:
                tell(f"{subject.name}: not begun, the time is up")
                break
            assert ahead is not None
            compiled = ahead.result()
            if index + 1 < len(left) and time.monotonic() + longest < until:
                ahead = compiling.submit(compile_grid, place, left[index + 1], plan)
            try:
                grid = measure_grid(place, compiled, plan, session)
            except BadDeviceError:
                raise
            except DeviceError as error:  # of this kernel, or of the moment: the others are worth their turn
                tell(f"{subject.name}: not measured: {error}")
                continue
            finally:
                longest = max(longest, time.monotonic() - begun)
            grid.save(folder / "grids")
            tell(
                f"{grid.name}: {len(grid.valid)} of {len(grid.entries)} configurations pass, compiled in {compiled.wall_s:.1f} s on "
                f"{grid.workers} cores, {time.monotonic() - begun:.1f} s in all, noise {grid.noise:.2%}"
            )
