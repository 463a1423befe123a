"""The judge: holds the oracle and compares outputs with its answers, in a process of its own that no candidate code enters."""

from __future__ import annotations

import torch

from evo.evaluation.oracle import DEFAULT_CAPACITY_BYTES, Oracle, Outputs
from evo.evaluation.tolerance import Verdict, compare
from evo.records import Failure, Stage
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw


class Judge:
    """Judges outputs of any candidate on inputs known by their seed. Not thread-safe.

    Args:
        device: Where the oracle computes; it must be the kind of device that made the candidate's inputs, for seeds draw
            other values on another kind.
        capacity_bytes: See `Oracle`.
    """

    def __init__(self, device: torch.device | str = "cpu", capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._oracle = Oracle(device, capacity_bytes)

    def judge(self, task: Task, case: Case, draw: Draw, outputs: Outputs, stage: Stage = Stage.GATE) -> Verdict | Failure:
        """Compares what a candidate made of `make_inputs` with the oracle's answer.

        Args:
            task, case, draw: Which inputs.
            outputs: See `evo.evaluation.oracle.flatten_outputs`; on any device.
            stage: Recorded in a failure.
        """
        expected = self._oracle.expected(task, case, draw)
        verdict = compare(outputs, expected, task.tolerance, summed_terms(case, expected.reference), stage)
        if isinstance(verdict, Failure):
            return Failure(verdict.status, verdict.stage, f"case {case.name}: {verdict.message}", verdict.signature)
        return Verdict(verdict.error_ratio, f"case {case.name}: {verdict.message}")


def summed_terms(case: Case, outputs: Outputs) -> int:
    """An upper estimate of how many terms are summed for one output element.

    The longest dimension of an input covers products and reductions of rows or columns; inputs many times larger than the
    smallest output cover reductions of several dimensions.
    """
    specs = [item for item in case.arguments if isinstance(item, TensorSpec)]
    longest = max((size for spec in specs for size in spec.shape), default=1)
    smallest = min((tensor.numel() for tensor in outputs.tensors if tensor.numel()), default=1)
    return max(1, longest, max((spec.numel for spec in specs), default=1) // smallest)
