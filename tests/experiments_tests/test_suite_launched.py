"""What a trace tells of a suite's calls before any search: sizes that no evaluator will compile, and kernels that a GPU will host."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from evo.records import Failure, Stage, Status
from evo.suites.calls import Call, Composed, chosen
from evo.suites.launched import HOSTED, _plans, _said, launched
from evo.tasks.base import Case, TensorSpec
from evo.tracing.workbench import Job


class Bench:
    """Traces a kernel that holds a whole row, for rows of so many elements as the case's name says."""

    def prepare(self, jobs: Sequence[Job]) -> list[Any]:
        return [self._traced(job.case) for job in jobs]

    def _traced(self, case: Case) -> Any:
        if case.name == "looks":
            return Failure(Status.UNTRACEABLE, Stage.TRACE, f"case {case.name}: item() reads a value", "untraceable:item")
        ttir = f"%0 = tt.load %1 : tensor<8x{case.name}xf32>"
        kernel = SimpleNamespace(name="max_kernel", ttir=ttir, options={"num_warps": 8})
        return SimpleNamespace(plan=SimpleNamespace(target="cuda:90", kernels=[kernel], steps={}))


def test_a_size_whose_tensors_no_block_holds_is_left_out_and_the_others_stay() -> None:
    cases = [Case(name, (TensorSpec((8,), "float32"),), 64, 8) for name in ("4096", "16384", "looks")]
    found, operators = _plans("def suite_entry(x):\n    return x\n", cases, Bench())  # type: ignore[arg-type]
    assert not operators
    assert not isinstance(found["4096"], Failure)
    large = found["16384"]
    assert isinstance(large, Failure)
    assert _said(large).startswith("case 16384: max_kernel holds a tensor of 2048 bytes per thread"), _said(large)
    assert found["looks"] is None


def test_where_no_measured_size_runs_the_largest_of_the_test_is_scored() -> None:
    class Refusing(Bench):
        def _traced(self, case: Case) -> Any:
            if case.name == "9000":
                return Failure(
                    Status.COMPILE_ERROR, Stage.COMPILE, f"case {case.name}: at 3:4:\nx\n^\nno float16", "compile_error"
                )
            return Failure(Status.UNTRACEABLE, Stage.TRACE, "a value", "untraceable:item")

    small, large, measured = (Call(0, (TensorSpec((size,), "float32"),), size == 9000) for size in (4, 8, 9000))
    notes: list[str] = []
    calls = Composed("def suite_entry(a0):\n    return a0\n", (small, large, measured), 1, 1)
    known = launched(calls.entry, calls, chosen(calls.calls), Refusing(), notes)  # type: ignore[arg-type]
    assert [case.name for case in known.training] == ["8"]
    assert [case.name for case in known.small] == ["small_4", "small_8"]
    assert notes == [
        "a size is left out: case 9000: no float16",
        HOSTED,
        "no size that is measured runs: scored is the largest of its test",
    ]
