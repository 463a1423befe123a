"""Stores for tests of data sets: what a run of real tasks would record, written by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from evo.knobs import read_knobs
from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    Exchange,
    LatencyKind,
    NoProposal,
    Proposal,
    Request,
    Spent,
    Stage,
    Status,
    Trial,
    TrustLevel,
    Usage,
    Variant,
)
from evo.tasks.loading import load_task, starting_sources
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store

SOFTMAX = starting_sources(load_task("softmax"))[0]

OWN_TASK = '''"""Squares."""

import torch

from evo.tasks.base import Case, Task, TensorSpec


def squares(x: torch.Tensor) -> torch.Tensor:
    return x.square()


def case(count: int) -> Case:
    return Case(f"{count}", (TensorSpec((count,), "float32"),), bytes=8 * count, flops=count)


TASK = Task(
    name="squares",
    description="y = x² for a float32 vector.",
    entry="squares",
    reference=squares,
    training_cases=(case(1 << 20),),
    held_out_cases=(),
    small_cases=(case(7),),
    starting_kernels=("squares_kernel.py",),
)
'''

OWN_KERNEL = """import torch
import triton
import triton.language as tl


@triton.jit
def squares_kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(y_ptr + at, x * x, mask=at < count)


def squares(x):
    y = torch.empty_like(x)
    squares_kernel[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
    return y
"""


def online(number: int) -> Variant:
    """Modules of different structure, by what is added up."""
    lines = "".join(f"    x = x + tl.exp(x * {step}.0) * tl.sum(x, axis=0)\n" for step in range(1, number + 2))
    return Variant("softmax", SOFTMAX.replace("    numerator", f"{lines}    numerator"))


def own_task(folder: Path) -> Path:
    """A task file of a user, with its kernel beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "squares_kernel.py").write_text(OWN_KERNEL)
    path = folder / "squares.py"
    path.write_text(OWN_TASK)
    return path


def passed(
    variant: Variant,
    speedup: float,
    *,
    plan: str = "",
    kind: LatencyKind = LatencyKind.MEASURED,
    width: float = 0.02,
    tuned: float = 1.0,
) -> Evaluation:
    """A verdict with an interval of ± `width`; `tuned`: what num_warps=4 gained over the declared configuration."""
    measured = kind is LatencyKind.MEASURED
    declared = read_knobs(variant.source).default
    best = Configuration({**declared, "num_warps": 4}) if tuned > 1 else declared
    low, high = (speedup * (1 - width), speedup * (1 + width)) if measured else (speedup, speedup)
    case = CaseResult("c", best, 0.5, 100 / speedup, 100.0, speedup, low, high, 32 if measured else 0, 0)
    trials = [Trial("c", declared, Status.PASSED, 100.0 * tuned), Trial("c", best, Status.PASSED, 100.0)] if tuned > 1 else []
    return Evaluation(
        variant.variant_id,
        Status.PASSED,
        Stage.TIME,
        "NVIDIA H200" if measured else "cuda:90 (modelled)",
        plan or f"plan of {variant.variant_id}",
        TrustLevel.REPLAYED if measured else TrustLevel.INTERPRETED,
        kind,
        fitness=low,
        cases=(case,),
        trials=tuple(trials),
    )


def failed(variant: Variant, message: str = "row 3 is wrong", status: Status = Status.WRONG_VALUES) -> Evaluation:
    return Evaluation(variant.variant_id, status, Stage.GATE, "NVIDIA H200", f"plan of {variant.variant_id}", message=message)


def duplicate(variant: Variant, of: Variant) -> Evaluation:
    return Evaluation(
        variant.variant_id, Status.DUPLICATE, Stage.TRACE, "NVIDIA H200", f"plan of {of.variant_id}", duplicate_of=of.variant_id
    )


def exchange(prompt: str, reply: str, model: str = "model-1") -> Exchange:
    return Exchange(model, f"hash of {prompt}", "t", prompt, reply, "end_turn", "r", 1.0, Usage())


class Recorded:
    """Writes a store.

    Args:
        path: Of the SQLite file.
        tasks: Names or paths.
        seeds: Task → sources that torch.compile gave.
        name: Of the run.
        target: Of the run.
        models: As the configuration has them.
    """

    def __init__(
        self,
        path: Path,
        tasks: Sequence[str],
        seeds: dict[str, list[str]] | None = None,
        name: str = "night",
        target: str = "cuda:90",
        models: Sequence[dict[str, object]] = (),
    ) -> None:
        loaded = {(task := load_task(item)).name: task for item in tasks}
        texts = {name: task.path.read_text() for name, task in loaded.items() if task.path}
        config = {"tasks": list(tasks), "target": target, "seeds": seeds or {}, "models": list(models)}
        header = RunHeader(
            name, 7, json.dumps(config), json.dumps(texts), json.dumps({"triton": "3.9.0"}), "2026-01-01T00:00:00+00:00"
        )
        self.path = str(path)
        self.store: PopulationStore = open_store(self.path, header=header)
        self._number = 0

    def start(self, task: str, source: str = "", **how: object) -> Variant:
        """A starting kernel, the baseline."""
        variant = Variant(task, source or starting_sources(load_task(task))[0])
        self._write("start", (), Proposal(variant.source, "starting kernel"), variant, passed(variant, 1.0, width=0.0, **how))  # type: ignore[arg-type]
        return variant

    def child(
        self,
        parents: Sequence[Variant],
        variant: Variant,
        verdict: Evaluation | None,
        *,
        operator: str = "tile",
        strategy: str = "larger tiles",
        exchanges: Sequence[Exchange] = (),
    ) -> Variant:
        outcome = Proposal(variant.source, strategy, tuple(exchanges))
        self._write(operator, tuple(item.variant_id for item in parents), outcome, variant, verdict)
        return variant

    def nothing(self, parent: Variant) -> None:
        self._write("llm_optimize", (parent.variant_id,), NoProposal("refused", failed=True), None, None, parent.task)

    def verify(self, number: int, verdict: Evaluation) -> None:
        self.store.record([EvaluationEntry(number, Purpose.VERIFY, verdict)], Spent())

    def close(self) -> str:
        self.store.close()
        return self.path

    def _write(
        self,
        operator: str,
        parents: tuple[str, ...],
        outcome: Proposal | NoProposal,
        variant: Variant | None,
        verdict: Evaluation | None,
        task: str = "",
    ) -> None:
        number, self._number = self._number, self._number + 1
        task = variant.task if variant is not None else task
        entries: list[Entry] = [
            Request(number, task, 0, f"{task}/0/0", operator, parents),
            OutcomeEntry(number, outcome, variant),
        ]
        if verdict is not None:
            entries.append(EvaluationEntry(number, Purpose.SEARCH, verdict))
        self.store.record(entries, Spent())
