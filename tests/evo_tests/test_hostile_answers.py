"""What a sandboxed child can answer to harm the process that asked: each time a verdict, and the next call works."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator

import pytest

from evo.errors import PlanError, WorkerDied
from evo.knobs import read_knobs
from evo.records import MAX_MESSAGE, Configuration, Failure, Stage, Status
from evo.tasks.base import Case, Task, TensorSpec
from evo.tracing.compiler import largest_bytes_per_thread
from evo.tracing.plan import Kernel, LaunchPlan
from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.tracer import Tracer

ASSEMBLY = """module {
  tt.func public @NAME(%arg0: tensor<16xf32>) {
    %0 = tt.elementwise_inline_asm "{ .reg .pred p, q; setp.gt.f32 p, $1, $1; PREDICATE add.f32 $0, $1, $1; }" {pure = true} %arg0
    tt.call @HELPER(%0) : (tensor<16xf32>) -> ()
    tt.return } }"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = ForkServer("test", Limits(memory_bytes=1 << 30, cpu_s=20))
    yield server
    server.close()


def deeper(levels: int, function: object) -> object:
    """Calls a function so many frames further down, as a caller with a deep stack of its own does."""
    return deeper(levels - 1, function) if levels else function()  # type: ignore[operator]


@pytest.mark.parametrize("depth", [600, 960, 975, 985, 990, 995, 100_000])
def test_an_answer_nested_too_deep_ends_neither_server_nor_caller(server: ForkServer, depth: int) -> None:
    request = {"text": "[" * depth + "]" * depth}
    process = server.call("tests.evo_tests.sandbox_children:parent", {}, deadline_s=10)
    with contextlib.suppress(WorkerDied):  # whether it is too deep depends on the depth of either process's stack
        deeper(500, lambda: server.call("tests.evo_tests.sandbox_children:write_raw", request, deadline_s=10))
    assert server.call("tests.evo_tests.sandbox_children:parent", {}, deadline_s=10) == process, (
        "the server did not have to start again"
    )


@pytest.mark.parametrize(("message", "signature"), [([1], "s"), ("m", 5), (None, "s")])
def test_a_failure_is_told_in_text(message: object, signature: object) -> None:
    with pytest.raises(ValueError, match="text"):
        Failure.from_json({"status": "rejected", "stage": "trace", "message": message, "signature": signature})


def test_a_failure_can_be_shown_stored_and_sent() -> None:
    failure = Failure(Status.TRACE_ERROR, Stage.TRACE, "Ünicode\ttab\nline \ud800 \x1b[31m \x00", "s\ud800" * 1000)
    assert failure.message == "Ünicode\ttab\nline \\ud800 \\x1b[31m \\x00"
    failure.signature.encode()
    assert len(Failure(Status.TIMEOUT, Stage.TRACE, "x" * 10**6, "").message) == MAX_MESSAGE


def test_predicates_of_inline_assembly_are_part_of_a_kernel_s_identity() -> None:
    def kernel(name: str, helper: str, predicate: str) -> Kernel:
        text = ASSEMBLY.replace("NAME", name).replace("HELPER", helper).replace("PREDICATE", predicate)
        return Kernel(name, text, (), {})

    one = kernel("kernel", "helper", "@p")
    assert one.kernel_hash == kernel("other", '"a helper"', "@p").kernel_hash, "names do not matter"
    assert one.kernel_hash != kernel("kernel", "helper", "@q").kernel_hash


def test_sizes_of_many_digits_are_left_to_the_compiler() -> None:
    kernel = Kernel("k", f"module {{ tensor<{'9' * 5000}xf32> tensor<1024x4xf32> }}", (), {"num_warps": 1})
    assert largest_bytes_per_thread(kernel, 32) == 512


@pytest.mark.parametrize(
    "config",
    [
        "{[]: 1}", "{'B': 1e400}", "{'B': 0x" + "f" * 5000 + "}", "{'B': '\\ud800'}", "{'B': '\\x1b[31m'}", "{'B': {{}}}",
        "{'B': " + "1+" * 3000 + "1}",
    ],
)  # fmt: skip
def test_knobs_that_no_store_or_module_could_hold_are_refused(config: str) -> None:
    for source in (f"CONFIG = {config}\n", f"CONFIG = {{'B': 1}}\nSPACE = {config.replace('1e400', '[1, 1e400]')}\n"):
        with pytest.raises(ValueError, match=r"CONFIG|SPACE|parse") as refused:
            read_knobs(source)
        str(refused.value).encode()
        assert len(str(refused.value)) < 500


FORGING = """
import torch, triton, triton.language as tl
import evo.tracing.trace_child as child

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)

class Forged:
    def __init__(self, plan):
        self.data = plan.to_json()
    def to_json(self):
        data, launch = self.data, self.data["steps"]["forward"][-1]
        FORGE
        return data

def copy(x):
    keep_needed = child.keep_needed
    child.keep_needed = lambda plan: Forged(keep_needed(plan))
    y = torch.empty_like(x)
    kernel[(1,)](x, y, x.numel(), BLOCK=64)
    return y
"""


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    tracer = Tracer("cuda:90", deadline_s=20)
    yield tracer
    tracer.close()


@pytest.mark.parametrize(
    ("forge", "said"),
    [
        ("pass", ""),
        ("data['target'] = 'cuda:100'", "it is for cuda:100"),
        ("data['triton'] = '3.0.0'", "it is of triton 3.0.0"),
        ("data['sources'][0]['key'] = 9", "argument 9"),
        ("data['sources'][0].update(kind='parameter', key='w')", "parameter w"),
        ("data['values'][0]['dtype'] = 'int32'", "argument 0"),
        ("launch['arguments'][2] = 10**300", "i32 needs a number of 64 bits"),
        ("launch['arguments'][2] = float('nan')", "i32 needs an integer"),
        ("data['kernels'][0]['signature'][1][0] = 'x'", "two parameters of one name"),
    ],
)
def test_a_forged_plan_that_does_not_fit_the_case_is_refused(tracer: Tracer, forge: str, said: str) -> None:
    case = Case("40", (TensorSpec((40,), "float32"),), 320, 0)
    task = Task(
        "copy", "A copy.", "copy", lambda x: x.clone(), (case,), (), (dataclasses.replace(case, name="small"),), (FORGING,)
    )
    found = tracer.trace(FORGING.replace("FORGE", forge), task, case, Configuration())
    if not said:
        assert isinstance(found, LaunchPlan)
        return
    assert isinstance(found, Failure)
    assert (found.status, said in found.message) == (Status.REJECTED, True), found.message


def test_plans_with_text_that_nothing_can_encode_or_walk_are_refused() -> None:
    kernel = {"name": "k", "ttir": "module {} \ud800", "signature": [], "options": {}}
    plan = {
        "version": 1, "triton": "3", "target": "cuda:90", "storages": [], "values": [], "sources": [], "kernels": [],
        "steps": {}, "outputs": None, "gradients": [], "choices": {},
    }  # fmt: skip
    assert LaunchPlan.from_json(plan).outputs is None
    with pytest.raises(PlanError, match="malformed plan: UnicodeEncodeError"):
        LaunchPlan.from_json({**plan, "kernels": [kernel]})
    with pytest.raises(PlanError, match="nested deeper"):
        LaunchPlan.from_json({**plan, "outputs": json.loads("[" * 60 + "]" * 60)})
