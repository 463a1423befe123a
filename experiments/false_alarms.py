"""Counts false alarms: honest kernels that the evaluator does not pass.

    python experiments/false_alarms.py --own --out DIR [--device auto] [--limit-s S]
    python experiments/false_alarms.py --tritonbench FOLDER --out DIR [--limit-s S]

``--own``: the starting kernels of the package's tasks, every rewrite of them by every rule at every site, a sample of rewrites of
rewrites and of crossovers, all through the real evaluator, untuned, in the configuration that they declare. All of them are right by
construction. So whatever does not pass is a false alarm, unless the compiler or the device says that the kernel does not fit.
On a GPU the starting kernels are verified as elites are, too. Writes false_alarms.json and .md.

``--tritonbench``: what the tracer makes of the files of TritonBench-G, see `experiments.suites.tritonbench_verdicts`.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.commands.measured import described, measured_with, queried, typed, write_results
from evo.errors import TritonEvolveError
from evo.evaluation.base import Baseline, Effort, Evaluator, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Proposal, Status, Variant
from evo.registry import find_operators
from evo.syntax import module_tree
from evo.tasks.base import Task
from evo.tasks.loading import builtin_tasks, load_task, starting_sources
from experiments.suites.tritonbench_verdicts import count_verdicts, replayed_rows, verdicts_page
from operators.base import Context, OperatorKind, Parent
from operators.rewrite.base import Rewrite, Site
from operators.source import NotApplicableError, check, read_source

NAME = "false_alarms"
MODELLED = "cuda:90"
"""What kernels are compiled for where there is no GPU."""
LIMITS = frozenset({Status.PASSED.value, Status.OUT_OF_RESOURCES.value, Status.COMPILE_ERROR.value})
"""No false alarm: it passed, or the compiler says that it does not fit."""
KINDS = ("start", "rewrite", "rewrite of a rewrite", "crossover", "verified start")


@dataclass(frozen=True)
class Honest:
    """A kernel that is right by construction: of which task, how it was made (one of `KINDS`), by what, and its source."""

    task: str
    kind: str
    operator: str
    strategy: str
    source: str


@dataclass(frozen=True)
class Verdict:
    """What became of one.

    Attributes:
        task, kind, operator, strategy: Of the `Honest` kernel.
        variant_id: Its variant.
        status: One of `Status`, or ``error`` where the evaluator itself failed.
        stage: The last one entered.
        message: Of the evaluator, empty if it passed.
        wall_s: Seconds it took.
        source: Empty if it passed.
    """

    task: str
    kind: str
    operator: str
    strategy: str
    variant_id: str
    status: str
    stage: str
    message: str
    wall_s: float
    source: str

    @property
    def alarm(self) -> bool:
        """Whether it is a false alarm."""
        return self.status not in LIMITS


def honest_kernels(task: Task, second: int, crossed: int, seed: int) -> list[Honest]:
    """All starting kernels and rewrites of them, `second` rewrites of rewrites and `crossed` crossovers; each source once."""
    starts = [Honest(task.name, "start", "start", "", source) for source in starting_sources(task)]
    first = [made for start in starts for site in _sites(start) if (made := _applied(*site, "rewrite")) is not None]
    sites = [site for parent in first for site in _sites(parent)]
    random.Random(seed).shuffle(sites)
    known = {item.source: item for item in reversed([*starts, *first])}
    again: dict[str, Honest] = {}
    for site in sites:
        if len(again) == second:
            break
        made = _applied(*site, "rewrite of a rewrite")
        if made is not None and made.source not in known:
            again.setdefault(made.source, made)
    crossovers = itertools.islice(_crossovers(task, [*first, *again.values()], known | again, seed), crossed)
    return [*dict.fromkeys(known[item.source] for item in [*starts, *first]), *again.values(), *crossovers]


def _sites(parent: Honest) -> Iterator[tuple[Honest, str, Site]]:
    """Every site of every rule: the kernel, the rule's name, the site."""
    source, given = read_source(parent.source), Parent(Variant(parent.task, parent.source))
    for name, operator in find_operators().items():
        if issubclass(operator, Rewrite):
            try:
                yield from ((parent, name, site) for site in operator().sites_of(given, source))
            except NotApplicableError:
                continue


def _applied(parent: Honest, operator: str, site: Site, kind: str) -> Honest | None:
    try:
        child = site.apply().code
        check(child)
    except NotApplicableError:
        return None
    if ast.dump(module_tree(child)) == ast.dump(module_tree(parent.source)):
        return None
    strategy = f"{parent.strategy}; {site.strategy}" if parent.strategy else site.strategy
    return Honest(parent.task, kind, operator, strategy, child)


def _crossovers(task: Task, parents: Sequence[Honest], known: Mapping[str, Honest], seed: int) -> Iterator[Honest]:
    """Children of random pairs, until pairs have been tried often enough."""
    context = Context(task.name, task.description, task.entry, "", task.operators, MODELLED, "")
    chance, seen = random.Random(seed), set(known)
    rules = [cls() for cls in find_operators().values() if cls.kind is OperatorKind.CROSSOVER and not cls.needs_model]
    for number in range(4 * len(parents) if rules else 0):
        operator = rules[number % len(rules)]
        pair = chance.sample(parents, min(operator.arity, len(parents)))
        given = tuple(Parent(Variant(task.name, item.source)) for item in pair)
        made = asyncio.run(operator.propose(given, context, np.random.default_rng((seed, number))))
        if isinstance(made, Proposal) and made.source not in seen:
            seen.add(made.source)
            yield Honest(task.name, "crossover", operator.name, made.strategy, made.source)


def count_own(tasks: Mapping[str, Task], device: str, limit_s: float, options: argparse.Namespace) -> dict[str, Any]:
    """Evaluates all honest kernels of the tasks and gives the results.

    Args:
        tasks: By name.
        device: ``gpu`` or ``cpu:TARGET``, as `build_evaluator` takes it.
        limit_s: No evaluation begins later than this.
        options: Numbers of kernels of a kind per task: ``second``, ``crossed``; ``seed``.
    """
    begun = time.monotonic()
    settings = EvaluationSettings(tune_trials=0, start_tune_trials=0, race=(4,))
    evaluator = build_evaluator(tasks, settings, device)
    try:
        with ThreadPoolExecutor(evaluator.concurrency) as pool:
            asked = [pool.submit(honest_kernels, task, options.second, options.crossed, options.seed) for task in tasks.values()]
            kernels = [item for future in asked for item in future.result()]
            starts = [item for item in kernels if item.kind == "start"]
            judged = list(pool.map(lambda item: _judge(evaluator, item, None), starts))
            baselines = {verdict.task: made for verdict, made in judged if made is not None}
            rest = [item for item in kernels if item.kind != "start"]
            random.Random(options.seed).shuffle(rest)  # what a limit leaves is of every task
            if device == "gpu":
                rest += [Honest(item.task, "verified start", "start", "", item.source) for item in starts]
            end = begun + limit_s
            running = [pool.submit(_in_time, evaluator, item, baselines.get(item.task), end) for item in rest]
            found = [future.result() for future in running]
        verdicts = [verdict for verdict, _ in judged] + [item for item in found if item is not None]
        return {
            "device": evaluator.device,
            "interpreted": device != "gpu",
            "seconds": time.monotonic() - begun,
            "kernels": len(verdicts),
            "not_evaluated": len(kernels) + (len(starts) if device == "gpu" else 0) - len(verdicts),
            "false_alarms": sum(verdict.alarm for verdict in verdicts),
            "verdicts": [{**asdict(verdict), "false_alarm": verdict.alarm} for verdict in verdicts],
        }
    finally:
        evaluator.close()


def _in_time(evaluator: Evaluator, item: Honest, baseline: Baseline | None, end: float) -> Verdict | None:
    return None if time.monotonic() > end else _judge(evaluator, item, baseline)[0]


def _judge(evaluator: Evaluator, item: Honest, baseline: Baseline | None) -> tuple[Verdict, Baseline | None]:
    """The verdict, and where it passed what makes it a baseline."""
    variant, started = Variant(item.task, item.source), time.monotonic()
    effort = Effort.VERIFY if item.kind == "verified start" else Effort.SEARCH
    status, stage, message, made = "error", "", "", None
    try:
        found = evaluator.evaluate(WorkItem(0, variant, baseline, effort=effort), lambda plan_hash, variant_id: None)
        status, stage, message = found.status.value, found.stage.value, found.message
        if found.status is Status.PASSED:
            made = Baseline(variant, {case.case: case.configuration for case in found.cases})
    except TritonEvolveError as error:
        message = f"{type(error).__name__}: {error}"
    facts = (item.task, item.kind, item.operator, item.strategy, variant.variant_id, status, stage, message)
    return Verdict(*facts, time.monotonic() - started, "" if made is not None else item.source), made


def own_page(results: Mapping[str, Any]) -> str:
    """Markdown: counts per task and kind, then whatever did not pass, one by one."""
    verdicts = results["verdicts"]
    statuses = sorted({item["status"] for item in verdicts}, key=lambda status: (status != "passed", status))
    without = " (no GPU, interpreted)" if results["interpreted"] else ""
    lines = [
        f"{results['device']}{without}. {described(results['session'])}",
        "",
        f"{results['kernels']} kernels that are right by construction, {results['false_alarms']} false alarms. "
        f"{results['seconds']:.0f} s; not evaluated for lack of time: {results['not_evaluated']}. Untuned, in declared configurations.",
        "",
        f"| task | kind | kernels | {' | '.join(statuses)} |",
        f"|---|---|---{'|---' * len(statuses)}|",
    ]
    for task, kind in itertools.product(sorted({item["task"] for item in verdicts}), KINDS):
        counted = Counter(item["status"] for item in verdicts if (item["task"], item["kind"]) == (task, kind))
        if counted:
            lines.append(f"| {task} | {kind} | {counted.total()} | {' | '.join(str(counted[name]) for name in statuses)} |")
    for title, alarm in (("False alarms", True), ("Said by the compiler or the device", False)):
        chosen = [item for item in verdicts if item["status"] != "passed" and item["false_alarm"] is alarm]
        lines += ["", f"## {title}: {len(chosen)}", ""]
        for item in chosen:
            text = " ".join(item["message"].split())[:300]
            lines.append(f"* {item['task']}, {item['kind']} by {item['operator']} ({item['strategy']}): {item['status']}: {text}")
    return "\n".join(lines).rstrip() + "\n"


def main(given: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--own", action="store_true", help="count on the package's tasks")
    what.add_argument("--tritonbench", type=Path, metavar="FOLDER", help="the folder of TritonBench-G's files")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument("--limit-s", type=float, default=3600.0, help="nothing begins after so many seconds")
    parser.add_argument("--tasks", nargs="+", default=sorted(builtin_tasks()), metavar="TASK")
    parser.add_argument("--second", type=int, default=25, help="rewrites of rewrites per task")
    parser.add_argument("--crossed", type=int, default=8, help="crossovers per task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="files of TritonBench traced side by side")
    parser.add_argument("--resume", action="store_true", help="keep what an earlier run with --tritonbench found replayed")
    parser.add_argument("--commit", default=None, help="of this project, where git cannot tell")
    options = parser.parse_args(given)
    session = measured_with(options.commit, typed("python experiments/false_alarms.py"))
    if options.tritonbench is not None:
        session["command"] = session["command"].replace(str(options.tritonbench), options.tritonbench.name)  # wherever it lies
        name = f"tritonbench_trace_{session['triton'].partition('+')[0]}"
        known = replayed_rows(options.out / f"{name}.json", session) if options.resume else {}
        counted = count_verdicts(options.tritonbench, MODELLED, options.workers, options.limit_s, known)
        results = {"session": session, **counted}
        write_results(options.out, name, results, verdicts_page(results))
        return
    gpu = options.device == "gpu" or (options.device == "auto" and bool(queried("name")))
    tasks = {task.name: task for task in map(load_task, options.tasks)}
    results = {"session": session, **count_own(tasks, "gpu" if gpu else f"cpu:{MODELLED}", options.limit_s, options)}
    write_results(options.out, NAME, results, own_page(results))


if __name__ == "__main__":
    main()
