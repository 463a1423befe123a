"""A small real store for tests of exports: starting kernels of builtin tasks and children of them, judged with their true plan hashes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import triton

from evo.evaluation.ladder import searched_hash
from evo.knobs import read_knobs
from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    LatencyKind,
    Proposal,
    Request,
    Spent,
    Stage,
    Status,
    TrustLevel,
    Variant,
    content_id,
)
from evo.tasks.base import Task
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store

H200 = ("NVIDIA H200", TrustLevel.REPLAYED, LatencyKind.MEASURED, 128)
MODEL = ("cuda:90 (modelled)", TrustLevel.INTERPRETED, LatencyKind.MODELLED, 0)

ONLINE_SOFTMAX = '''"""Softmax in blocks of columns."""

import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 1024, "num_warps": 4}
SPACE = {"BLOCK": [256, 1024, 4096], "num_warps": [4, 8]}


@triton.jit
def online_kernel(x_ptr, y_ptr, n_columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    high = float("-inf")
    total = 0.0
    for start in range(0, n_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * n_columns + columns, mask=columns < n_columns, other=float("-inf")).to(tl.float32)
        new = tl.maximum(high, tl.max(x, axis=0))
        total = total * tl.exp(high - new) + tl.sum(tl.exp(x - new), axis=0)
        high = new
    for start in range(0, n_columns, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < n_columns
        x = tl.load(x_ptr + row * n_columns + columns, mask=mask, other=float("-inf")).to(tl.float32)
        tl.store(y_ptr + row * n_columns + columns, (tl.exp(x - high) / total).to(y_ptr.dtype.element_ty), mask=mask)


def softmax(x):
    y = torch.empty_like(x)
    online_kernel[(x.shape[0],)](x, y, x.shape[1], BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
'''


class Judge:
    """Makes PASSED evaluations with the plan hashes that real evaluators record."""

    def __init__(self) -> None:
        self._tracer = Tracer("cuda:90")

    def close(self) -> None:
        self._tracer.close()

    def passed(
        self,
        task: Task,
        source: str,
        latencies: Sequence[float],
        chosen: Sequence[Mapping[str, int]],
        *,
        error: float = 0.5,
        how: tuple[str, TrustLevel, LatencyKind, int] = MODEL,
        verify: bool = False,
    ) -> Evaluation:
        knobs = read_knobs(source)
        default = knobs.default
        tuned = [Configuration({**default, **given}) for given in chosen]
        traced = tuned if verify else [default] * len(tuned)
        plans = [self._tracer.trace(source, task, case, conf) for case, conf in zip(task.training_cases, traced, strict=True)]
        assert all(isinstance(plan, LaunchPlan) for plan in plans), plans
        hashes = [plan.plan_hash for plan in plans if isinstance(plan, LaunchPlan)]
        device, trust, kind, pairs = how
        results = tuple(
            CaseResult(case.name, conf, error, latency, 100.0, 100 / latency, 99 / latency, 101 / latency, pairs, 4096)
            for case, conf, latency in zip(task.training_cases, tuned, latencies, strict=True)
        )
        return Evaluation(
            Variant(task.name, source).variant_id,
            Status.PASSED,
            Stage.VERIFY if verify else Stage.TIME,
            device,
            plan_hash=content_id(*hashes) if verify else searched_hash(hashes, knobs),
            trust=trust,
            latency_kind=kind,
            fitness=99 / max(latencies),
            cases=results,
        )


def header_of(tasks: Sequence[Task], **versions: str) -> RunHeader:
    texts = {task.name: task.path.read_text() for task in tasks if task.path}
    config = {"tasks": [str(task.path) for task in tasks], "target": "cuda:90"}
    return RunHeader(
        "sample",
        7,
        json.dumps(config),
        json.dumps(texts),
        json.dumps({"triton": triton.__version__, **versions}),
        "2026-01-01T00:00:00",
    )


def lineage(
    number: int,
    task: str,
    source: str,
    evaluation: Evaluation,
    parents: tuple[str, ...] = (),
    *,
    strategy: str,
    verify: Evaluation | None = None,
) -> list[Entry]:
    """A request with its outcome and verdicts."""
    operator = "llm_mutation" if parents else "start"
    entries: list[Entry] = [
        Request(number, task, 0, f"{task}/0/0", operator, parents),
        OutcomeEntry(number, Proposal(source, strategy), Variant(task, source)),
        EvaluationEntry(number, Purpose.SEARCH, evaluation),
    ]
    return [*entries, EvaluationEntry(number, Purpose.VERIFY, verify)] if verify is not None else entries


def write_store(path: Path, tasks: Sequence[Task], entries: Sequence[Entry], **versions: str) -> PopulationStore:
    store = open_store(str(path), write=True, header=header_of(tasks, **versions))
    store.record(entries, Spent())
    return store


def start_of(name: str) -> tuple[Task, str]:
    task = load_task(name)
    return task, starting_sources(task)[0]
