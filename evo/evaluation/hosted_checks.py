"""Checks one hosted call: three equal runs, untouched memory, the task's rules, and the judge's word on the outputs."""

from __future__ import annotations

from typing import Any

import torch

from evo.evaluation.failed import Failed
from evo.evaluation.hosted_lending import InvalidAnswer, Lending
from evo.evaluation.hosted_sides import Side
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import Outputs
from evo.evaluation.tier import Checked
from evo.records import Failure, Stage, Status
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw

HOST_READS = frozenset({"aten._local_scalar_dense", "aten.item", "aten.nonzero", "aten.is_nonzero"})
"""What a wrapper that cannot be traced may do besides a task's operators: look at values."""
REPEATS = 3


def check(side: Side, lending: Lending, case: Case, draw: Draw, judge: Judge) -> Checked:
    """Runs the module on the inputs of a draw.

    Raises:
        Failed: It does not pass.
    """
    side.fill([draw])
    first: Outputs | None = None
    peak_bytes = 0
    for number in range(REPEATS):
        if number:
            lending.restore()
        side.process.ask("run", sets=[0], watched=number == 0)
        snapshot = lending.snapshot()
        answer = side.process.ask("describe")
        outputs = read(lending, answer, [0], snapshot)[0]
        refuse_changes(side.task, lending, Stage.GATE)
        if first is None:
            refuse_operators(side.task, answer)
            refuse_aliases(lending, answer)
            first, peak_bytes = outputs, _peak_bytes(answer, outputs)
        elif not same_bits(first, outputs):
            text = (
                "equal calls give different bits: a race, atomics whose order matters, or an answer that depends on earlier calls"
            )
            raise failed(Status.NONDETERMINISTIC, Stage.GATE, text, "bits")
    assert first is not None
    verdict = judge.judge(side.task, case, draw, first)
    if isinstance(verdict, Failure):
        raise Failed(verdict)
    return Checked(verdict.error_ratio, peak_bytes)


def read(lending: Lending, answer: dict[str, Any], numbers: list[int], snapshot: torch.Tensor) -> dict[int, Outputs]:
    """The outputs of sets.

    Raises:
        Failed: They are described as no honest process describes them.
    """
    try:
        return lending.read(answer, numbers, snapshot)
    except InvalidAnswer as error:
        raise failed(Status.REJECTED, Stage.GATE, f"the module's process described no outputs: {error}", "answer") from error


def refuse_changes(task: Task, lending: Lending, stage: Stage) -> None:
    """Raises Failed where guard bands or inputs were written to."""
    guards, inputs = lending.changed()
    if inputs:
        name = inputs[0]
        what = f"argument {name}" if isinstance(name, int) else f"parameter {name}"
        raise failed(Status.GUARD_VIOLATION, stage, f"changes {what}, which the task does not update in place", "inputs")
    if guards:
        raise failed(
            Status.GUARD_VIOLATION, stage, f"writes outside its buffers ({guards} bytes of guard bands changed)", "bands"
        )


def refuse_operators(task: Task, answer: dict[str, Any]) -> None:
    """Raises Failed where torch computes what the task does not allow, or no kernel is launched. The list comes from the
    candidate's own process: it keeps honest modules to the rules."""
    operators, launches = answer.get("operators"), answer.get("launches")
    if not isinstance(operators, list) or not all(isinstance(name, str) for name in operators) or not isinstance(launches, int):
        raise failed(Status.REJECTED, Stage.GATE, "the module's process named no operators", "answer")
    refused = sorted(set(operators) - task.operators - HOST_READS)
    if refused:
        text = f"torch computes {', '.join(refused)}; write it in Triton (a task may list allowed operators)"
        raise failed(Status.REJECTED, Stage.GATE, text, f"operators:{','.join(refused)}")
    if launches < 1:
        raise failed(Status.REJECTED, Stage.GATE, "no Triton kernel is launched", "no launch")


def refuse_aliases(lending: Lending, answer: dict[str, Any]) -> None:
    """Raises Failed where outputs share memory with inputs or with each other and those of the reference do not. Told by the
    candidate's own process: it keeps an honest module from handing its caller memory that changes under it."""
    told = answer.get("aliases")
    if not isinstance(told, list) or not all(_is_pair(item) for item in told):
        raise failed(Status.REJECTED, Stage.GATE, "the module's process did not say where its outputs lie", "answer")
    extra = sorted({(str(one), str(other)) for one, other in told} - lending.sharing)
    if extra:
        text = f"{extra[0][0]} shares memory with {extra[0][1]}; the reference returns new memory"
        raise failed(Status.WRONG_STRUCTURE, Stage.GATE, text, "aliasing")


def same_bits(a: Outputs, b: Outputs) -> bool:
    """Whether two calls gave the same structure and the same bytes."""
    if a.structure != b.structure or len(a.tensors) != len(b.tensors):
        return False
    return all(_same(x, y) for x, y in zip(a.tensors, b.tensors, strict=True))


def failed(status: Status, stage: Stage, message: str, signature: str) -> Failed:
    """A failure to raise."""
    return Failed(Failure(status, stage, message, f"{status.value}:hosted:{signature}"))


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if (a.shape, a.dtype, a.stride()) != (b.shape, b.dtype, b.stride()):
        return False
    return torch.equal(a, b) or torch.equal(*(item.contiguous().reshape(-1).view(torch.uint8) for item in (a, b)))


def _is_pair(item: object) -> bool:
    return isinstance(item, list) and len(item) == 2 and all(isinstance(name, str) for name in item)


def _peak_bytes(answer: dict[str, Any], outputs: Outputs) -> int:
    """Bytes beyond the inputs: what torch's allocator says in the candidate's process, but never less than the outputs."""
    told = answer.get("peak_bytes")
    return max(outputs.nbytes, told if type(told) is int and 0 <= told < 2**50 else 0)
