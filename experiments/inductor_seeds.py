"""For how many KernelBench problems torch.compile gives a starting kernel that is traced, compiled for cuda:90 and proved correct.

    python -m experiments.inductor_seeds --suite-root KERNELBENCH --out experiments/results

No GPU is used. A problem is a task with the suite's own sizes and a case of reduced ones (found by trying smaller constants of the
problem file). The seed, in Triton alone, serves both; both are traced and compiled, and the reduced one is interpreted and judged
against the float64 oracle. Where a problem's model is the same for both cases, sizes are symbols and the kernels that
are interpreted are the kernels of the suite's own sizes; else the two cases are separate forms of the module, which the table says.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton

from evo.errors import TaskError
from evo.evaluation.interpreter import InterpretedTier
from evo.evaluation.tier import Candidate
from evo.knobs import read_knobs
from evo.records import Configuration, Failure
from evo.seeding import child
from evo.seeding.graphs import NotCompilable
from evo.suites.kernelbench_problems import ENTRY, Problem, find_problem
from evo.suites.kernelbench_sizes import reduced
from evo.tasks.base import Task, Tolerance
from evo.tasks.draws import Draw, Variation
from evo.tracing.workbench import Job, Workbench
from operators.inductor import Entry, NotApplicableError, seed_module

TARGET = "cuda:90"
WIDEST = 1 << 16


@dataclass(frozen=True)
class Row:
    """What became of a problem: `outcome` is the stage it reached, ``correct`` the last."""

    number: int
    name: str
    outcome: str
    reason: str = ""
    forms: int = 0
    kernels: int = 0
    constants: str = ""
    seconds: float = 0.0


def main() -> None:
    """Writes inductor_seeds.json and .md."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite-root", type=Path, required=True)
    parser.add_argument("--level", type=int, default=1)
    parser.add_argument("--problems", default="1-100", help="such as 1-100 or 3,19,40-50")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--deadline", type=float, default=90.0, help="seconds for the seed of a problem")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=Path, help="folder to keep the seeds in")
    arguments = parser.parse_args()
    numbers = list(_numbers(arguments.problems))
    made = _seeds(arguments.suite_root, arguments.level, numbers, arguments.processes, arguments.deadline)
    rows = {row.number: row for row in _earlier(arguments.out, arguments.level)}
    bench = Workbench(TARGET, workers=arguments.processes)
    tier = InterpretedTier(TARGET, deadline_s=60.0, workbench=bench)
    try:
        for number in numbers:
            answer = made[number]
            if arguments.seeds is not None and "source" in answer:
                arguments.seeds.mkdir(parents=True, exist_ok=True)
                (arguments.seeds / f"{number}.py").write_text(answer["source"], encoding="utf-8")
            rows[number] = row = _checked(arguments.suite_root, arguments.level, number, answer, bench, tier)
            print(f"{row.number:3d} {row.outcome:12s} {row.name[:40]:40s} {row.reason[:120]}", flush=True)
            _write(arguments.out, [rows[key] for key in sorted(rows)], arguments.level)
    finally:
        tier.close()
        bench.close()


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _task(problem: Problem) -> Task:
    small, training = problem.small[0], problem.training
    reference = problem.reference()
    if str(small.model) == str(training.model) and vars_of(small.model) == vars_of(training.model):
        names = [name for name, _ in training.model.named_parameters()]

        def reference(*arguments: Any) -> Any:
            state = dict(zip(names, arguments[training.inputs :], strict=True))
            return torch.func.functional_call(training.model, state, arguments[: training.inputs])

    return Task(
        name=problem.name, description=problem.path.stem, entry=ENTRY, reference=reference, training_cases=(training.case,),
        held_out_cases=(), small_cases=(small.case,), starting_kernels=(), tolerance=Tolerance(), kind="kernelbench",
    )  # fmt: skip


def vars_of(model: torch.nn.Module) -> tuple[Any, ...]:
    """What tells two models of one class apart: shapes of parameters and plain attributes."""
    plain = {key: value for key, value in vars(model).items() if isinstance(value, int | float | str | tuple)}
    return [tuple(item.shape) for item in model.parameters()], plain


def _seeds(root: Path, level: int, numbers: Sequence[int], processes: int, deadline: float) -> dict[int, dict[str, Any]]:
    """The seed of each problem, from a process of its own forked from this one, in which all is imported already."""
    import torch._dynamo.device_interface
    import torch._inductor.compile_fx
    import torch._inductor.graph
    import torch._inductor.runtime.triton_helpers
    import torch._inductor.select_algorithm

    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    found: dict[int, dict[str, Any]] = {}
    waiting = list(numbers)
    running: dict[int, tuple[Any, Any, float]] = {}
    while waiting or running:
        while waiting and len(running) < processes:
            number = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_seed, args=(root, level, number, theirs))
            process.start()
            theirs.close()
            running[number] = (process, ours, time.monotonic())
        for number, (process, ours, began) in list(running.items()):
            late = time.monotonic() - began > deadline
            if not ours.poll(0.05) and process.is_alive() and not late:
                continue
            try:
                found[number] = ours.recv() if ours.poll(0) else {"failure": f"no answer within {deadline:g} s"}
            except EOFError:
                found[number] = {"failure": "its process ended without an answer"}
            found[number]["seconds"] = time.monotonic() - began
            process.kill()
            process.join()
            del running[number]
            print(f"seed {number:3d} {found[number].get('failure', 'made')[:150]}", flush=True)
    return found


def _seed(root: Path, level: int, number: int, answers: Any) -> None:
    import os
    import tempfile

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.chdir(folder)
        os.environ.update(TORCHINDUCTOR_CACHE_DIR=folder, TRITON_CACHE_DIR=folder, TORCHINDUCTOR_COMPILE_THREADS="1")
        answers.send(_made(root, level, number))


def _made(root: Path, level: int, number: int) -> dict[str, Any]:
    try:
        problem, chosen = reduced(find_problem(root, level, number))
    except TaskError as error:
        return {"stage": "problem", "failure": " ".join(str(error).split())}
    constants = ", ".join(f"{name}={value}" for name, value in chosen.items())
    task = _task(problem)
    try:
        answer = child.seed_of(task, TARGET, "template")
    except NotCompilable as error:
        return {"stage": "seed", "failure": " ".join(str(error).split()), "constants": constants}
    except Exception as error:  # noqa: BLE001  counted and named, as is all that fails here
        return {"stage": "seed", "failure": f"{type(error).__name__}: {error}", "constants": constants}
    names = tuple(f"a{index}" for index in range(len(task.training_cases[0].arguments)))
    try:
        made = seed_module(
            answer["forms"], answer["library"], Entry(ENTRY, names, about=f"{problem.path.stem}, by torch.compile.")
        )
    except (NotApplicableError, SyntaxError) as error:
        return {"stage": "seed", "failure": " ".join(str(error).split()), "constants": constants}
    wanting = sorted(made.operators - task.operators)
    if wanting:
        return {"stage": "seed", "failure": f"it calls {', '.join(wanting)}", "constants": constants}
    return {"source": made.source, "forms": len(answer["forms"]), "constants": constants}


def _checked(root: Path, level: int, number: int, answer: Mapping[str, Any], bench: Workbench, tier: InterpretedTier) -> Row:
    path = find_problem(root, level, number)
    name = path.stem.partition("_")[2]
    common = {"forms": answer.get("forms", 0), "constants": answer.get("constants", ""), "seconds": round(answer["seconds"], 1)}
    if "source" not in answer:
        return Row(number, name, f"no {answer.get('stage', 'seed')}", answer["failure"], **common)
    source = answer["source"]
    common["kernels"] = source.count("_kernel(")
    task = _task(reduced(path)[0])
    cases = (*task.small_cases, *task.training_cases)
    chosen = {task.small_cases[0]: _wide(source), task.training_cases[0]: read_knobs(source).default}
    made = bench.prepare([Job(source, task, case, chosen[case]) for case in cases])
    for case, item in zip(cases, made, strict=True):
        if isinstance(item, Failure):
            where = "reduced" if case in task.small_cases else "full size"
            return Row(number, name, f"{item.stage} failed", f"{where}: {_short(item.message)}", **common)
    plan = made[0]
    assert not isinstance(plan, Failure)
    candidate = Candidate(source, cases[0], chosen[cases[0]], plan.plan, plan.binaries)
    verdict = tier.check(task, candidate, [Draw(1, Variation.PLAIN)])
    if isinstance(verdict, Failure):
        return Row(number, name, verdict.status.value, _short(verdict.message), **common)
    return Row(number, name, "correct", **common)


def _stem(level: int) -> str:
    return "inductor_seeds" if level == 1 else f"inductor_seeds_level{level}"


def _earlier(out: Path, level: int) -> list[Row]:
    """Rows of a run before, which this one replaces or adds to: the problems can be done in slices."""
    path = out / f"{_stem(level)}.json"
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))["rows"]] if path.exists() else []


def _wide(source: str) -> Configuration:
    """The configuration of the fewest programs, for the interpreter's sake: blocks of outputs as large as fit beside the others."""
    knobs = read_knobs(source)
    chosen = dict(knobs.default)
    for key, choices in knobs.space.items():
        if key.startswith("RBLOCK") and "tl.reduce(" in source:
            chosen[key] = min(choices)  # it combines elements one by one where a reduction is none of NumPy's
    for key, choices in knobs.space.items():
        name, _, number = key.partition("_")
        if name == "XBLOCK":
            rows = int(chosen.get(f"RBLOCK_{number}" if number else "RBLOCK", 1))
            chosen[key] = max((item for item in choices if int(item) * rows <= WIDEST), default=knobs.default[key])
    return Configuration(chosen)


def _short(text: str) -> str:
    return " ".join(re.sub(r"\s+", " ", text).split())[:240]


def _write(out: Path, rows: Sequence[Row], level: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.outcome] = counts.get(row.outcome, 0) + 1
    facts = {
        "torch": torch.__version__, "triton": triton.__version__, "python": platform.python_version(), "target": TARGET,
        "level": level, "counts": counts,
    }  # fmt: skip
    stem = _stem(level)
    (out / f"{stem}.json").write_text(
        json.dumps({**facts, "rows": [asdict(row) for row in rows]}, indent=1) + "\n", encoding="utf-8"
    )
    others = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if outcome != "correct") or "none"
    absent = ", ".join(str(number) for number in range(1, 101) if number not in {row.number for row in rows}) or "none"
    lines = [
        f"# Starting kernels by torch.compile, KernelBench level {level}",
        "",
        f"torch {torch.__version__}, triton {triton.__version__}, compiled for {TARGET}; no GPU. `python -m experiments.inductor_seeds "
        f"--suite-root KERNELBENCH --level {level} --out experiments/results`",
        "",
        f"Of {len(rows)} problems, **{counts.get('correct', 0)}** have a seed in Triton alone that is traced and compiled at the suite's "
        f"sizes and proved correct at reduced ones, under the interpreter. Others: {others}. Not looked at: {absent}.",
        "",
        "`timeout` is 60 s of the interpreter on a busy machine, no wrong value; slices of problems are merged, see the commit's history.",
        "",
        "One form: sizes are symbols, so what is interpreted is what the suite's sizes run. Two: a form for each, as the model changes "
        "with its constants, and the form of the suite's sizes is traced and compiled, not interpreted.",
        "",
        "| # | problem | outcome | forms | kernels | reduced by | reason |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        reason = row.reason.replace("|", "\\|")
        lines.append(f"| {row.number} | {row.name} | {row.outcome} | {row.forms} | {row.kernels} | {row.constants} | {reason} |")
    (out / f"{stem}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
