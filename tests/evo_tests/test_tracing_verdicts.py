"""Which verdict the tracer gives on modules that are wrong in one way each, and that plans from a hostile child are refused."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any

import pytest
from triton.compiler.errors import CompilationError

from evo.errors import PlanError
from evo.records import Configuration, Failure, Stage, Status
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.compiler import Compiler
from evo.tracing.effects import written_arguments
from evo.tracing.plan import LaunchPlan
from evo.tracing.trace_child import describe
from evo.tracing.tracer import Tracer

CASE = Case("c", (TensorSpec((64, 33), "float32"),), bytes=1, flops=0)
TASK = Task("double", "", "entry", lambda x: x * 2, (CASE,), (), (Case("s", CASE.arguments, 1, 0),), ())
HEAD = """
import os, random, time
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * 2, mask=at < n)

def launch(x, y, block=256, **more):
    kernel[(triton.cdiv(x.numel(), block),)](x, y, x.numel(), BLOCK=block, **more)

"""
GOOD = HEAD + "def entry(x):\n    y = torch.empty_like(x)\n    launch(x, y)\n    return y\n"


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    tracer = Tracer("cuda:90", deadline_s=20)
    yield tracer
    tracer.close()


def trace(tracer: Tracer, source: str, **configuration: Any) -> LaunchPlan | Failure:
    return tracer.trace(source, TASK, CASE, Configuration(configuration))


def body(text: str) -> str:
    return HEAD + "def entry(x):\n" + "".join(f"    {line}\n" for line in text.splitlines())


WRONG = {
    "syntax": ("def entry(x:\n", Status.REJECTED, "does not parse"),
    "no entry": (HEAD, Status.REJECTED, "does not define entry"),
    "torch computes": (body("return x * 2"), Status.REJECTED, "aten.mul"),
    "fig leaf": (body("y = torch.empty_like(x)\nlaunch(x, y)\nreturn x + x"), Status.REJECTED, "aten.add"),
    "nothing launched": (body("return torch.empty_like(x)"), Status.REJECTED, "no Triton kernel"),
    "host tensor": (body("y = torch.empty(x.shape)\nlaunch(x, y)\nreturn y"), Status.REJECTED, "device=x.device"),
    "reads a value": (body("y = torch.empty_like(x)\nif x.sum() > 0:\n    launch(x, y)\nreturn y"), Status.UNTRACEABLE, "host"),
    "item": (body("n = x[0, 0].item()\ny = torch.empty_like(x)\nlaunch(x, y)\nreturn y"), Status.UNTRACEABLE, "item"),
    "compares": (
        body("y = torch.empty_like(x)\nlaunch(x, y)\ntorch.testing.assert_close(y, x)\nreturn y"),
        Status.UNTRACEABLE,
        "host",
    ),
    "to the host": (body("y = torch.empty_like(x)\nlaunch(x, y)\nreturn y.cpu()"), Status.UNTRACEABLE, "cpu"),
    "raises": (body("raise KeyError('lost')"), Status.TRACE_ERROR, "lost"),
    "exits": (body("os._exit(0)"), Status.TRACE_ERROR, "exit 0"),
    "system exit": (body("raise SystemExit(0)"), Status.TRACE_ERROR, "SystemExit"),
    "another stream": (body("with torch.cuda.stream(torch.cuda.Stream()):\n    pass\nreturn x"), Status.REJECTED, "Stream"),
    "random grid": (
        body("y = torch.empty_like(x)\nlaunch(x, y, 2 ** random.randint(4, 12))\nreturn y"),
        Status.NONDETERMINISTIC,
        "",
    ),
    "clock": (
        body("y = torch.empty_like(x)\nkernel[(9,)](x, y, time.time_ns() % 1000003, BLOCK=256)\nreturn y"),
        Status.NONDETERMINISTIC,
        "",
    ),
    "address as number": (
        body("y = torch.empty_like(x)\nkernel[(9,)](x, y, x.data_ptr(), BLOCK=256)\nreturn y"),
        Status.NONDETERMINISTIC,
        "",
    ),
    "compile error": (GOOD.replace("tl.load(x_ptr + at, mask=at < n) * 2", "tl.lode(x_ptr)"), Status.COMPILE_ERROR, "lode"),
    "unknown option": (
        body("y = torch.empty_like(x)\nlaunch(x, y, number_of_warps=4)\nreturn y"),
        Status.TRACE_ERROR,
        "number_of_warps",
    ),
    "cached answer": (
        HEAD + "seen = {}\ndef entry(x):\n    if 0 not in seen:\n        seen[0] = torch.empty_like(x)\n"
        "        launch(x, seen[0])\n    y = torch.empty_like(x)\n    launch(seen[0], y)\n    return seen[0]\n",
        Status.REJECTED,
        "keeps state",
    ),
    "knob not a literal": (GOOD + "CONFIG = dict(BLOCK=3)\n", Status.REJECTED, "literal"),
    "knob outside of its space": (GOOD + "CONFIG = {'B': 3}\nSPACE = {'B': [1, 2]}\n", Status.REJECTED, "not among"),
}


@pytest.mark.parametrize("name", WRONG)
def test_verdict(tracer: Tracer, name: str) -> None:
    source, status, text = WRONG[name]
    failure = trace(tracer, source)
    assert isinstance(failure, Failure), failure
    assert failure.status is status, failure
    assert text in failure.message
    assert failure.signature


def test_a_failure_names_the_candidate_s_line(tracer: Tracer) -> None:
    failure = trace(tracer, body("y = torch.empty_like(x)\nreturn undefined_name"))
    assert isinstance(failure, Failure)
    assert "return undefined_name" in failure.message


def test_what_a_called_function_was_refused_for_is_said() -> None:
    node = ast.parse("y = tl.sigmoid(x)").body[0]
    inner = CompilationError("return 1 / (1 + exp(x))", node, "Expected dtype fp32 but got fp16")
    outer = CompilationError("y = tl.sigmoid(x)", node, None)
    outer.__cause__ = inner
    assert describe(outer)["message"].splitlines()[-1] == "Expected dtype fp32 but got fp16"
    assert describe(inner)["message"].count("Expected dtype") == 1


def test_equal_code_has_one_hash_whatever_it_is_called(tracer: Tracer) -> None:
    plans = [
        trace(tracer, source)
        for source in (GOOD, GOOD.replace("kernel", "other_name").replace("y_ptr", "out"), GOOD + "\n# a comment\n")
    ]
    assert all(isinstance(plan, LaunchPlan) for plan in plans), plans
    assert len({plan.plan_hash for plan in plans if isinstance(plan, LaunchPlan)}) == 1
    spelled = trace(tracer, GOOD.replace("torch.empty_like(x)", "x.new_empty(x.shape)"))
    assert isinstance(spelled, LaunchPlan)
    assert spelled.plan_hash == plans[0].plan_hash  # type: ignore[union-attr]
    different = trace(tracer, GOOD.replace("* 2,", "* 3,"))
    assert isinstance(different, LaunchPlan)
    assert different.plan_hash != plans[0].plan_hash  # type: ignore[union-attr]


def test_a_configuration_reaches_the_launch(tracer: Tracer) -> None:
    source = GOOD.replace("launch(x, y)", "launch(x, y, CONFIG['B'])") + "CONFIG = {'B': 64}\n"
    plan = trace(tracer, source, B=1024)
    assert isinstance(plan, LaunchPlan)
    assert plan.launches[0].grid == (3, 1, 1)
    refused = trace(tracer, source, C=1)
    assert isinstance(refused, Failure)
    assert refused.status is Status.REJECTED


TAMPERED = {
    "version": lambda p: p.update(version=99),
    "target": lambda p: p.update(target="cuda:90; rm"),
    "huge storage": lambda p: p["storages"].__setitem__(0, 80 << 30),
    "huge storages together": lambda p: p.update(storages=[60 << 30 for _ in p["storages"]]),
    "negative size": lambda p: p["values"][0]["shape"].__setitem__(0, -1),
    "view past its storage": lambda p: p["values"][0]["strides"].__setitem__(0, 1 << 20),
    "unknown value": lambda p: p["steps"]["forward"][1]["arguments"].__setitem__(0, {"value": 77}),
    "pointer as number": lambda p: p["steps"]["forward"][1]["arguments"].__setitem__(0, 123456),
    "huge grid": lambda p: p["steps"]["forward"][1].update(grid=[1, 1 << 20, 1]),
    "unknown step": lambda p: p["steps"]["forward"].append({"step": "exec", "code": "1"}),
    "made twice": lambda p: p["steps"]["forward"].append({"step": "allocate", "storage": 1}),
    "used before made": lambda p: p["steps"]["forward"].insert(0, {"step": "fill", "value": 1, "scalar": 0}),
    "option that names a file": lambda p: p["kernels"][0]["options"].update(ir_override="/etc/passwd"),
    "option of another type": lambda p: p["kernels"][0]["options"].update(enable_fp_fusion="False"),
    "kernel name": lambda p: p["kernels"][0].update(name="a\nb"),
    "operator name": lambda p: p["steps"]["forward"].append(
        {"step": "operator", "name": "os.system", "overload": "de fault", "arguments": [], "keywords": {}, "results": []}
    ),
    "memory nobody poisons": lambda p: p["steps"]["forward"].append(
        {"step": "operator", "name": "aten.empty", "overload": "default", "arguments": [[4]], "keywords": {}, "results": [1]}
    ),
    "prepare reads an input": lambda p: p["steps"]["prepare"].append({"step": "fill", "value": 0, "scalar": 0}),
    "not a plan": lambda p: p.clear(),
    "output nobody made": lambda p: p.update(outputs={"value": 5}),
    "output that no step makes": lambda p: p["steps"].update(forward=[]),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_a_tampered_plan_is_refused(tracer: Tracer, name: str) -> None:
    plan = trace(tracer, GOOD)
    assert isinstance(plan, LaunchPlan)
    data = copy.deepcopy(plan.to_json())
    TAMPERED[name](data)  # type: ignore[no-untyped-call]
    with pytest.raises(PlanError):
        LaunchPlan.from_json(data)


def test_which_arguments_a_kernel_writes(tracer: Tracer) -> None:
    plan = trace(tracer, GOOD)
    assert isinstance(plan, LaunchPlan)
    assert written_arguments(plan.kernels[0].ttir) == {1}


def test_what_cannot_fit_is_refused_before_the_compiler_spends_minutes_on_it(tracer: Tracer) -> None:
    plan = trace(tracer, GOOD.replace("block=256", "block=32768").replace("launch(x, y)", "launch(x, y, num_warps=1)"))
    assert isinstance(plan, LaunchPlan)
    compiler = Compiler("cuda:90")
    try:
        failure = compiler.compile(plan.kernels[0])
    finally:
        compiler.close()
    assert isinstance(failure, Failure)
    assert (failure.status, failure.stage) == (Status.OUT_OF_RESOURCES, Stage.COMPILE)
    assert "smaller tiles or more warps" in failure.message
