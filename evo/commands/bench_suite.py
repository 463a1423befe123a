"""`triton-evolve bench SUITE`: runs a public suite problem by problem, goes on where it was, and writes the field's tables."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import typer
from rich.console import Console

from evo.cluster.devices import MODELLED_TARGET, resolve_device
from evo.cluster.session import ray_session
from evo.cluster.suite_workers import ProblemJob, SuiteCrew
from evo.commands.console import make_console
from evo.commands.interruption import INTERRUPTED, Interruption
from evo.commands.measured import measured_with, typed
from evo.commands.search import make_header
from evo.config import RunConfig, read_config
from evo.errors import InputError, StoreError
from evo.evaluation.settings import EvaluationSettings
from evo.reporting.accuracy import pass_at_k, read_accuracy
from evo.search.settings import Budget, SearchSettings
from evo.seeding.warm import kept_warm
from evo.suites.base import Against, Problem, Suite, Tools
from evo.suites.comparing import COMPILERS, Comparing, verified_best
from evo.suites.figures import pass_at
from evo.suites.jobs import STORE, RunFolder, selected
from evo.suites.preparing import TASK, Ready, prepare, starts_of
from evo.suites.recording import Recording
from evo.suites.registry import find_suite
from evo.suites.results import results_of, summary_table, write_files
from evo.suites.rows import read_rows
from evo.tasks.loading import load_task
from evo.tracing.workbench import Workbench
from evo.tracing.zygote import Zygote
from population_store.opening import open_store

RUNS = Path("runs") / "bench"
EVALUATION = EvaluationSettings(
    tune_trials=6, deep_tune_trials=24, start_tune_trials=24, trace_deadline_s=120.0, compile_deadline_s=120.0
)
SEARCH = SearchSettings(islands=1, verify_elites=2)
"""A small budget per problem: one population, of which the best is verified, and the next where that fails."""
FOR_SEARCHES = 2 / 3
"""Of a limited time, where calls are compared as well."""
MOST_AT_ONCE = 32
"""Problems that are prepared side by side: each has processes of its own, which import torch before they are of use."""
KS = (1, 2, 4, 8, 16, 32)
STEPS = ("prepare", "search", "compare")
DEVICES = ("auto", "gpu", "cpu")


@dataclass(frozen=True)
class SuiteOptions:
    """What the command line gives.

    Attributes:
        root: Of the checkout.
        problems: Some of them, see `evo.suites.jobs.selected`; None for all.
        evaluations, gpu_s: Budget of each problem.
        store: Folder of the run; None: ``runs/bench/SUITE``.
        limit_s: Nothing is begun after so many seconds, and what is in hand is cut off soon after; None: no limit.
        only: One of `STEPS`; None: all that are not done.
        device: One of `DEVICES`.
        config: A configuration whose models, operators and settings are taken.
        seed: Of all randomness.
        out: Folder for the results besides that of the run.
        commit: Named in the results, for copies without git history.
    """

    root: Path
    problems: str | None = None
    evaluations: int | None = 24
    gpu_s: float | None = None
    store: Path | None = None
    limit_s: float | None = None
    only: str | None = None
    device: str = "auto"
    config: Path | None = None
    seed: int = 0
    out: Path | None = None
    commit: str | None = None

    def __post_init__(self) -> None:
        for option, given, allowed in (("--only", self.only or STEPS[0], STEPS), ("--device", self.device, DEVICES)):
            if given not in allowed:
                raise InputError(option, given=given, allowed=allowed)


def bench_suite_command(name: str, options: SuiteOptions) -> int:
    """Runs what is not done yet, writes the results and prints their head.

    Returns:
        Exit status.

    Raises:
        InputError: The suite, the checkout, the configuration or the folder cannot be used.
        TritonEvolveError: Every device failed.
    """
    suite = find_suite(name)
    problems = selected(suite.problems(options.root), options.problems)
    folder = RunFolder(options.store or RUNS / suite.name, suite, options.root)
    if options.out is not None:
        try:  # now, not after hours
            options.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"--out {options.out}", given=error.strerror, action="give a folder, or where one can be made"
            ) from error
    with Interruption() as interruption:
        run = _Run(suite, folder, problems, options, make_console(), interruption)
        device = run.go()
    if interruption.reason is not None:
        typer.echo(f"{interruption.reason}; everything finished is recorded. Go on with the same command")
    run.report(device)
    return INTERRUPTED if interruption.reason is not None else 0


class _Run:
    """One call of the command."""

    def __init__(
        self,
        suite: Suite,
        folder: RunFolder,
        problems: Sequence[Problem],
        options: SuiteOptions,
        console: Console,
        interruption: Interruption,
    ) -> None:
        self._suite, self._folder, self._options = suite, folder, options
        self._problems = folder.hosted_last(problems)
        self._console, self._interruption = console, interruption
        self._begun = time.time()
        self._count = 0

    def go(self) -> str:
        """Does all steps that are asked for; the device."""
        config = self._base()
        if self._options.only == "prepare":
            target = self._suite.target or MODELLED_TARGET
            for _ in self._prepared(target, self._end(1.0)):
                pass
            return f"cpu:{target}"
        with ray_session(config.cluster) as capacity:
            self._interruption.install()  # Ray has put its own handlers in place
            device, target, _ = resolve_device(config, capacity, lambda: self._interruption.reason)
            self._refuse_another(device)
            cluster = config.cluster.model_copy(update={"device": "gpu" if device == "gpu" else "cpu"})
            config = config.model_copy(update={"target": target, "cluster": cluster})
            crew = SuiteCrew(device, config, capacity, lambda: self._interruption.reason)
            comparing = device == "gpu" and self._options.only != "search"
            if self._options.only != "compare":
                end = self._end(FOR_SEARCHES if comparing else 1.0)
                crew.run(self._searches(config, end), self._tell)
            if comparing and self._interruption.reason is None:
                crew.run(self._comparisons(config, self._end(1.0)), self._tell)
        return device

    def report(self, device: str) -> None:
        """Writes the results of the suite's problems and prints their head."""
        counted = _sampled(self._folder, self._problems)
        rows = read_rows(self._folder, self._problems, counted)
        passing = {str(k): pass_at(rows, k, pass_at_k) for k in KS}
        session = measured_with(self._options.commit, _shown(typed("triton-evolve")))
        results = results_of(self._suite, rows, session, device, passing)
        places = [write_files(self._folder.path, "results", results)]
        if self._options.out is not None:
            places.append(write_files(self._options.out, self._suite.name.replace("-", "_"), results))
        for line in summary_table([results]):
            typer.echo(line)
        states = Counter(row.state for row in rows)
        self._console.print(", ".join(f"{count} {state}" for state, count in states.most_common()))
        for paths in places:
            typer.echo(f"results: {', '.join(str(path) for path in paths)}")

    def _base(self) -> RunConfig:
        """What the configurations of all problems have in common."""
        options = self._options
        given = {} if options.config is None else read_config(options.config).model_dump()
        section = {**given.get("cluster", {}), "device": options.device}
        common = RunConfig(
            **{
                "search": SEARCH,
                "evaluation": EVALUATION,
                **given,
                "name": self._suite.name,
                "tasks": ("none",),
                "target": self._suite.target or given.get("target", "auto"),
                "store": None,
                "seeds": {},
                "seed": options.seed,
                "budget": Budget(evaluations=options.evaluations, gpu_s=options.gpu_s),
                "cluster": section,
            }
        )
        if self._suite.target is not None and options.device == "auto":
            # No GPU at hand may be of the suite's target: kernels are compiled for it, and interpreted.
            common = common.model_copy(update={"cluster": common.cluster.model_copy(update={"device": "cpu"})})
        return common

    def _config(self, base: RunConfig, problem: Problem) -> RunConfig:
        folder = self._folder.of(problem)
        starts = starts_of(folder)
        return base.model_copy(
            update={
                "name": problem.name,
                "tasks": (str(folder / TASK),),
                "store": str(folder / STORE),
                "seeds": {problem.name: starts} if starts else {},
            }
        )

    def _job(self, base: RunConfig, problem: Problem, end: float, comparing: Comparing | None = None) -> ProblemJob:
        config = self._config(base, problem)
        task = load_task(config.tasks[0], check=False)
        return ProblemJob(str(self._folder.of(problem)), config, make_header(config, {task.name: task}), end, comparing)

    def _searches(self, base: RunConfig, end: float) -> Iterator[tuple[str, ProblemJob]]:
        """Problems that are ready and whose budget is not used, as they become ready, most expected gain first."""
        budget = base.budget
        for problem, ready in self._prepared(base.target, end):
            searched = self._folder.searched(problem)
            if ready.stage != "ready" or (searched is not None and searched.serves(budget.evaluations, budget.gpu_s)):
                continue
            if ready.gpu_only and base.cluster.device == "cpu":
                self._tell(problem.name, f"needs a GPU: {ready.gpu_only}")
                continue
            if time.time() > end:
                return
            yield problem.name, self._job(base, problem, end)

    def _comparisons(self, base: RunConfig, end: float) -> Iterator[tuple[str, ProblemJob]]:
        """Problems with a verified variant that was not measured yet."""
        sides = ("kernel",) if self._suite.against is Against.KERNEL else tuple(COMPILERS)
        for problem in self._problems:
            path = self._folder.of(problem) / STORE
            if time.time() > end or not path.exists():
                continue
            with open_store(str(path)) as store:
                best = verified_best(store.ranking(problem.name))
            known = self._folder.compared(problem)
            if best is not None and (known is None or known.get("variant") != best.variant.variant_id):
                yield problem.name, self._job(base, problem, end, Comparing(sides))

    def _prepared(self, target: str, end: float) -> Iterator[tuple[Problem, Ready]]:
        """All problems with what their preparation gave, in order; it goes on in threads meanwhile."""
        workers = preparing_at_once(len(os.sched_getaffinity(0)), alone=self._options.only == "prepare")
        with ExitStack() as stack:
            stack.enter_context(kept_warm())
            bench = Workbench(target, workers=workers)
            stack.callback(bench.close)
            spare: SimpleQueue[Recording] = SimpleQueue()
            zygote = Zygote("record")
            stack.callback(zygote.close)
            for _ in range(workers):
                recording = Recording(target, zygote=zygote)
                stack.callback(recording.close)
                spare.put(recording)

            def work(problem: Problem) -> Ready | None:
                known = self._folder.ready(problem)
                if known is not None or time.time() > end or self._interruption.reason is not None:
                    return known
                recording = spare.get()
                try:
                    tools = Tools(recording, bench)
                    return prepare(self._suite, self._folder.root, problem, self._folder.of(problem), tools, target)
                finally:
                    spare.put(recording)

            pool = stack.enter_context(ThreadPoolExecutor(workers))
            waiting: list[tuple[Problem, Future[Ready | None], bool]] = [
                (problem, pool.submit(work, problem), self._folder.ready(problem) is None) for problem in self._problems
            ]
            try:
                for problem, future, new in waiting:
                    ready = future.result()
                    if ready is None:
                        continue
                    if new:
                        self._tell(problem.name, f"{ready.stage}{': ' if ready.reason else ''}{ready.reason}")
                    yield problem, ready
            finally:
                for _, future, _ in waiting:
                    future.cancel()

    def _refuse_another(self, device: str) -> None:
        """A suite's figures are of one kind of device."""
        for problem in self._problems:
            searched = self._folder.searched(problem)
            if searched is not None and searched.device != device:
                action = f"a run on {device} needs another --store"
                raise StoreError(str(self._folder.path), given=f"results of {searched.device}", action=action)

    def _tell(self, name: str, what: str) -> None:
        self._count += 1
        self._console.print(f"{time.time() - self._begun:6.0f} s  {name}: {' '.join(what.split())[:160]}")

    def _end(self, part: float) -> float:
        return self._begun + (self._options.limit_s * part if self._options.limit_s is not None else 1e9)


def preparing_at_once(cores: int, *, alone: bool) -> int:
    """Problems that are prepared side by side, each of which uses a core at a time; beside searches, which compile, half of the cores."""
    return min(MOST_AT_ONCE, max(1, cores if alone else cores // 2))


def _sampled(folder: RunFolder, problems: Sequence[Problem]) -> Mapping[str, tuple[int, int]]:
    """Finished first proposals of models and correct ones, of problems that models were asked about."""
    found: dict[str, tuple[int, int]] = {}
    for problem in problems:
        path = folder.of(problem) / STORE
        if not path.exists():
            continue
        with open_store(str(path)) as store:
            if not json.loads(store.header.config).get("models"):
                continue
            first = read_accuracy(store).first.get(problem.name)
        if first is not None:
            found[problem.name] = first.finished, first.correct
    return found


def _shown(command: Sequence[str]) -> list[str]:
    """The command without the places of this machine."""
    return [Path(word).name if os.sep in word and Path(word).exists() else word for word in command]
