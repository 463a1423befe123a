"""`triton-evolve bench evaluator`: candidates that differ and are what they say, a run on the interpreted tier, and its page."""

from __future__ import annotations

import ast
import json
import random
from pathlib import Path

import pytest

from evo.commands.bench import page
from evo.commands.bench_mix import SHARES, Mix, configured, restated
from evo.knobs import read_knobs
from evo.main import main
from evo.records import Configuration
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer

TASK = '''
from evo.tasks.base import Case, Task, TensorSpec


def doubled(x):
    return 2 * x


def case(count):
    spec = TensorSpec((count,), "float32")
    return Case(f"n{count}", (spec,), 2 * spec.nbytes, count)


KERNEL = """
import torch
import triton
import triton.language as tl

CONFIG = {"BLOCK": 256, "num_warps": 4}
SPACE = {"BLOCK": [64, 256], "num_warps": [1, 4]}


@triton.jit
def kernel(x_ptr, y_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < count), mask=at < count)


def entry(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), CONFIG["BLOCK"]),)](x, y, x.numel(), BLOCK=CONFIG["BLOCK"], num_warps=CONFIG["num_warps"])
    return y
"""

TASK = Task(
    name="doubled", description="twice a vector", entry="entry", reference=doubled, training_cases=(case(4096),),
    held_out_cases=(), small_cases=(case(33),), starting_kernels=(KERNEL,),
)
'''


@pytest.fixture
def task_path(tmp_path: Path) -> Path:
    path = tmp_path / "doubled.py"
    path.write_text(TASK)
    return path


def test_candidates_differ_and_come_in_the_shares_they_are_said_to(task_path: Path) -> None:
    (start,) = starting_sources(load_task(str(task_path)))
    mix = Mix("doubled", [start], "entry", (), seed=3)
    made = [mix.candidate(number) for number in range(400)]
    assert len({candidate.source for candidate in made}) == len(made)
    assert made == [mix.candidate(number) for number in range(400)]
    for kind, share in SHARES.items():
        assert sum(candidate.kind == kind for candidate in made) / len(made) == pytest.approx(share, abs=0.06)
    for candidate in made:
        ast.parse(candidate.source)


def test_a_restated_kernel_is_another_kernel_to_the_tracer(task_path: Path) -> None:
    task = load_task(str(task_path))
    (start,) = starting_sources(task)
    tracer = Tracer("cuda:90")
    try:
        plans = [tracer.trace(restated(start, number), task, task.training_cases[0], Configuration()) for number in range(2)]
    finally:
        tracer.close()
    assert all(isinstance(plan, LaunchPlan) for plan in plans)
    assert plans[0].plan_hash != plans[1].plan_hash  # type: ignore[union-attr]


def test_another_configuration_is_declared_where_the_old_one_was(task_path: Path) -> None:
    (start,) = starting_sources(load_task(str(task_path)))
    found = {configured(start, random.Random(seed)) for seed in range(20)}
    assert {dict(read_knobs(source).default)["BLOCK"] for source in found} == {64, 256}
    assert all(read_knobs(source).space == read_knobs(start).space for source in found)


def test_a_kernel_without_a_program_index_cannot_be_restated() -> None:
    with pytest.raises(ValueError, match="program index"):
        restated("import triton\n\n@triton.jit\ndef kernel(x):\n    pass\n", 1)


@pytest.mark.slow
def test_the_command_measures_the_interpreted_tier(task_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "evaluator", "--task", str(task_path), "--seconds", "3", "--device", "cpu", "--seed", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--out", str(tmp_path / "out"), "--commit", "abc1234"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    results = json.loads((tmp_path / "out" / "bench_evaluator.json").read_text())
    assert results["session"]["commit"] == "abc1234"
    assert results["unexpected"] == []
    assert sum(sum(counted.values()) for counted in results["verdicts"].values()) == results["candidates"]
    assert set(results["stage_s"]) >= {"prepare", "check", "time"}
    assert "candidates per hour" in printed
    assert (tmp_path / "out" / "bench_evaluator.md").read_text() == page(results)


def test_an_unknown_device_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "evaluator", "--device", "tpu"])
    assert ended.value.code == 2
    assert "'tpu'" in capsys.readouterr().err
