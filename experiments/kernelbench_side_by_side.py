"""KernelBench's own evaluator and ours, side by side on one GPU: the same candidates for the same problems, their time and their verdicts.

    python experiments/kernelbench_side_by_side.py --kernelbench-root CHECKOUT --out experiments/results

Ours runs first, then theirs until --limit-s; what no time was left for is said. Both are warm: processes, contexts and what is made once
per problem (expected values, a baseline, the A/A run) are reported apart. Theirs is `eval_kernel_against_ref` with 5 correctness
and 100 timed trials, everything else at its default, in one process for all candidates (a user starts one for each). Ours is
`LadderEvaluator.evaluate` without tuning: once one candidate at a time (its latency), once with as many threads as the
evaluator takes (the share of a busy evaluator; the candidates are restated, so that nothing is remembered). Writes
kernelbench_side_by_side.json and .md, again after each step. What theirs said of a candidate in an earlier session on the same kind
of GPU need not be asked again: --theirs-from names that file.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.commands.bench_mix import restated
from evo.commands.measured import described, measured_with, typed, write_results
from evo.errors import InputError, TritonEvolveError
from evo.evaluation.base import Baseline, Evaluator, WorkItem
from evo.evaluation.building import build_evaluator
from evo.evaluation.settings import EvaluationSettings
from evo.records import Evaluation, Status, Variant
from evo.suites.kernelbench_problems import find_problem, task_file
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.loading import load_task
from experiments.kernelbench.asking import Late, Theirs
from experiments.kernelbench.candidates import CANDIDATES, SMALL, Candidate, as_model
from experiments.kernelbench.page import side_by_side_page, side_by_side_text

T = TypeVar("T")
LEVEL = 1
NAME = "kernelbench_side_by_side"
THEIR_SECONDS_PER_ELEMENT = 45e-9
"""Of inputs, for a candidate: a first guess, corrected by what is measured."""
SHARE_PASS_S = 6.0
"""The busy pass over a problem repeats its candidates to about this much work."""
OUR_PART = 0.4
"""Of the limit: after it, busy passes are left out."""


@dataclass(frozen=True)
class Asked:
    """One problem: its file, its task and the candidates."""

    number: int
    path: Path
    task: Task
    candidates: tuple[Candidate, ...]

    @property
    def elements(self) -> int:
        """Elements of the inputs at full size, which KernelBench draws on the CPU."""
        return _elements(self.task.training_cases[0])


class Record:
    """The results so far, written after each step."""

    def __init__(self, folder: Path, session: Mapping[str, Any], asked: Sequence[Asked], candidates: Sequence[Candidate]) -> None:
        self._folder = folder
        self._session = dict(session)
        self.problems: dict[int, dict[str, Any]] = {
            item.number: {"title": item.path.stem, "case": item.task.training_cases[0].name, "elements": item.elements}
            for item in asked
        }
        self.rows: dict[Candidate, dict[str, Any]] = {
            item: {
                "problem": item.problem,
                "candidate": item.name,
                "right": item.right,
                "why": item.why,
                "ours": {},
                "theirs": {},
            }
            for item in candidates
        }
        self.setup: dict[str, Any] = {}

    def keep_theirs(self, earlier: Mapping[str, Any]) -> None:
        """Takes over what theirs said in an earlier session, which is named.

        Raises:
            InputError: It was another kind of GPU.
        """
        session = earlier["session"]
        if session["gpu"] != self._session["gpu"]:
            raise InputError("--theirs-from", given=session["gpu"], allowed=self._session["gpu"])
        said = {(row["problem"], row["candidate"]): row["theirs"] for row in earlier["rows"]}
        kept = [item for item in self.rows if "seconds" in said.get((item.problem, item.name), {})]
        for item in kept:
            self.rows[item]["theirs"] = said[item.problem, item.name]
        self.setup["theirs"] = earlier["setup"].get("theirs", {})
        self.setup["theirs_kept"] = {"candidates": len(kept), "measured": session}

    def save(self) -> dict[str, Any]:
        """Writes and returns everything."""
        shares = {number: item.get("our_share_s") for number, item in self.problems.items()}
        rows = [{**row, "share_s": shares[row["problem"]], "verdict": verdict(row)} for row in self.rows.values()]
        results = {
            "session": self._session,
            "setup": self.setup,
            "problems": self.problems,
            "rows": rows,
            "summary": summary(rows),
        }
        write_results(self._folder, NAME, results, side_by_side_page(results, described(self._session)))
        return results


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kernelbench-root", type=Path, required=True, help="a checkout that holds src/kernelbench and KernelBench/level1"
    )
    parser.add_argument("--problems", help=f"numbers in level 1, comma-separated, of {','.join(map(str, SMALL))}; default: all")
    parser.add_argument("--out", type=Path, default=Path("experiments/results"), help="folder for the results")
    parser.add_argument("--limit-s", type=float, default=560.0, help="wall seconds for everything")
    parser.add_argument(
        "--device", default="gpu", help="of ours: gpu, or cpu:cuda:90 for the interpreted tier (theirs needs a GPU)"
    )
    parser.add_argument("--only-ours", action="store_true", help="leave KernelBench's evaluator out")
    parser.add_argument(
        "--theirs-from", type=Path, help="an earlier kernelbench_side_by_side.json, whose answers of theirs are kept"
    )
    parser.add_argument("--commit", help="of this project, for copies without their git history")
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    numbers = [int(item) for item in options.problems.split(",")] if options.problems else list(SMALL)
    candidates = [item for item in CANDIDATES if item.problem in numbers]
    with tempfile.TemporaryDirectory(prefix="triton-evolve-kernelbench-") as folder:
        asked = [ask(options.kernelbench_root, number, Path(folder), candidates) for number in numbers]
        record = Record(options.out, measured_with(options.commit, typed(f"python {sys.argv[0]}")), asked, candidates)
        try:
            measure_ours(record, asked, options.device, begun + OUR_PART * options.limit_s)
        except TritonEvolveError as error:
            record.setup["ours_failed"] = f"{type(error).__name__}: {error}"
            print(f"ours failed: {error}", flush=True)
        if not options.only_ours:
            log = options.out / f"{NAME}.log"
            if options.theirs_from:
                record.keep_theirs(json.loads(options.theirs_from.read_text()))
            measure_theirs(record, asked, options.kernelbench_root, log, begun + options.limit_s - 8.0)
    results = record.save()
    print(side_by_side_text(results), flush=True)


def ask(root: Path, number: int, folder: Path, candidates: Sequence[Candidate]) -> Asked:
    """Reads a problem; its right candidate is the task's starting kernel."""
    mine = tuple(item for item in candidates if item.problem == number)
    path = find_problem(root, LEVEL, number)
    start = next(item for item in mine if item.right)
    task = load_task(str(task_file(folder, path, SMALL[number], [start.source])))
    return Asked(number, path, task, mine)


def measure_ours(record: Record, asked: Sequence[Asked], device: str, busy_until: float) -> None:
    """All candidates, one at a time and then together, problem by problem."""
    started = time.monotonic()
    settings = EvaluationSettings(tune_trials=0, start_tune_trials=0)
    evaluator = build_evaluator({item.task.name: item.task for item in asked}, settings, device)
    try:
        numbers = itertools.count(1)
        for item in asked:
            begun = time.monotonic()
            baseline = our_baseline(evaluator, item)
            record.problems[item.number]["our_setup_s"] = time.monotonic() - begun
            if "ours_ready_s" not in record.setup:
                record.setup["ours_ready_s"] = time.monotonic() - started
            for candidate in item.candidates:
                record.rows[candidate]["ours"] = our_verdict(evaluator, item, candidate, baseline, next(numbers))
                record.save()
                tell("ours", candidate, record.rows[candidate]["ours"])
            if time.monotonic() < busy_until:
                record.problems[item.number]["our_share_s"] = our_share(evaluator, record, item, baseline, numbers)
                record.save()
        record.setup["our_threads"] = evaluator.concurrency
        record.setup["our_device"] = evaluator.device
    finally:
        evaluator.close()
    record.setup["ours_s"] = time.monotonic() - started


def our_baseline(evaluator: Evaluator, item: Asked) -> Baseline:
    """The right kernel as it is; everything that is made once per problem is made here."""
    variant = Variant(item.task.name, next(candidate for candidate in item.candidates if candidate.right).source)
    verdict = evaluate(evaluator, WorkItem(0, variant, None))
    return Baseline(variant, {case.case: case.configuration for case in verdict.cases})


def our_verdict(evaluator: Evaluator, item: Asked, candidate: Candidate, baseline: Baseline, number: int) -> dict[str, Any]:
    """One candidate alone. A worker that ran out of memory, which earlier problems may still hold, is new at the second attempt."""
    variant = Variant(item.task.name, restated(candidate.source, number))
    work = WorkItem(number, variant, baseline if baseline.configurations else None)
    before = dict(evaluator.stage_seconds())
    seconds, verdict = timed(lambda: evaluate(evaluator, work))
    retried = "out of memory" in verdict.message.lower() or "outofmemory" in verdict.message.lower()
    if retried:
        seconds, verdict = timed(lambda: evaluate(evaluator, work))
    case = verdict.cases[0] if verdict.cases else None
    spent = {name: value - before.get(name, 0.0) for name, value in evaluator.stage_seconds().items()}
    return {
        "stages": {name: round(value, 4) for name, value in spent.items() if value > 0},
        "status": verdict.status.value,
        "stage": verdict.stage.value,
        "message": verdict.message,
        "seconds": seconds,
        "retried": retried,
        "latency_us": case.latency_us if case else None,
        "error_ratio": verdict.error_ratio if case else None,
        "pairs": case.pairs if case else None,
        "noise_floor": verdict.noise_floor,
    }


def our_share(evaluator: Evaluator, record: Record, item: Asked, baseline: Baseline, numbers: itertools.count[int]) -> float:
    """Wall seconds per candidate of a problem when all threads of the evaluator have work."""
    alone = sum(record.rows[candidate]["ours"]["seconds"] for candidate in item.candidates)
    copies = max(1, min(8, int(SHARE_PASS_S / max(alone, 1e-3))))
    work = []
    for _, candidate in itertools.product(range(copies), item.candidates):
        number = next(numbers)
        variant = Variant(item.task.name, restated(candidate.source, number))
        work.append(WorkItem(number, variant, baseline if baseline.configurations else None))
    with ThreadPoolExecutor(evaluator.concurrency) as threads:
        seconds, _ = timed(lambda: list(threads.map(lambda one: evaluate(evaluator, one), work)))
    return seconds / len(work)


def evaluate(evaluator: Evaluator, work: WorkItem) -> Evaluation:
    """Nothing is a duplicate here."""
    return evaluator.evaluate(work, lambda plan_hash, variant_id: None)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Wall seconds and the result."""
    started = time.monotonic()
    result = work()
    return time.monotonic() - started, result


def measure_theirs(record: Record, asked: Sequence[Asked], root: Path, log: Path, until: float) -> None:
    """Candidates in order while there is time; a process that ended is replaced."""
    theirs: Theirs | None = None
    per_element, started = THEIR_SECONDS_PER_ELEMENT, time.monotonic()
    problems = {item.number: item for item in asked}
    try:
        for candidate in sorted(record.rows, key=lambda item: item.spoils):
            if "seconds" in record.rows[candidate]["theirs"]:
                continue
            item, row, left = problems[candidate.problem], record.rows[candidate], until - time.monotonic()
            if left < 1.1 * per_element * item.elements + 3.0:
                row["theirs"] = {"not_run": f"{left:.0f} s were left of the limit"}
                continue
            try:
                if theirs is None:
                    theirs = Theirs(root, log, left)
                    record.setup.setdefault("theirs", theirs.ready)
                row["theirs"] = theirs.evaluate(item.path, as_model(candidate.source, item.path), until - time.monotonic())
                if item.elements > 1e8 and "seconds" in row["theirs"]:
                    per_element = max(0.7 * per_element, row["theirs"]["seconds"] / item.elements)
            except Late as error:
                row["theirs"], theirs = {"not_run": str(error)}, None
            record.save()
            tell("theirs", candidate, row["theirs"])
    finally:
        if theirs is not None:
            theirs.close()
    record.setup["theirs_s"] = time.monotonic() - started


def tell(side: str, candidate: Candidate, found: Mapping[str, Any]) -> None:
    """One line of progress."""
    said = found.get("status") or found.get("not_run") or ("passed" if found["correct"] else "refused")
    print(f"{side}: {candidate.problem} {candidate.name}: {said}, {found.get('seconds', 0.0):.1f} s", flush=True)


def verdict(row: Mapping[str, Any]) -> str:
    """How the verdicts compare, in a few words."""
    ours, theirs = row["ours"], row["theirs"]
    if not ours or "correct" not in theirs:
        return "–"
    we_pass, they_pass = ours["status"] == Status.PASSED.value, theirs["correct"]
    if we_pass == they_pass:
        return "same" if we_pass == row["right"] else f"same, both wrong: {row['why']}"
    if we_pass == row["right"]:
        return f"ours is right: {row['why']}" if not row["right"] else "ours is right: theirs refuses a right kernel"
    return f"OURS IS WRONG: {row['why']}"


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the candidates that both have judged, and how often verdicts agree."""
    both = [row for row in rows if row["ours"] and "seconds" in row["theirs"]]
    ratios = [row["theirs"]["seconds"] / row["ours"]["seconds"] for row in both]
    verdicts = [verdict(row) for row in both]
    shares = [row["theirs"]["seconds"] / row["share_s"] for row in both if row.get("share_s")]
    return {
        "median_ratio_busy": statistics.median(shares) if shares else None,
        "candidates": len(rows),
        "judged_by_both": len(both),
        "theirs_median_s": statistics.median([row["theirs"]["seconds"] for row in both]) if both else None,
        "ours_median_s": statistics.median([row["ours"]["seconds"] for row in both]) if both else None,
        "median_ratio": statistics.median(ratios) if both else None,
        "smallest_ratio": min(ratios, default=None),
        "same": sum(item == "same" for item in verdicts),
        "ours_right": sum(item.startswith("ours is right") for item in verdicts),
        "ours_wrong": sum(item.startswith(("OURS", "same, both")) for item in verdicts),
    }


def _elements(case: Case) -> int:
    return sum(item.numel for item in case.arguments if isinstance(item, TensorSpec))


if __name__ == "__main__":
    main()
