"""The judge: holds the oracle and compares outputs with its answers, in a process of its own that no candidate code enters."""

from __future__ import annotations

import dataclasses
import gc

import torch

from evo.evaluation.inputs import make_inputs
from evo.evaluation.oracle import DEFAULT_CAPACITY_BYTES, MANY_ROUNDINGS, Expected, Oracle, Outputs
from evo.evaluation.tolerance import LUCK, PRODUCT_EPSILON, Arithmetic, Verdict, compare, structure_failure
from evo.records import Failure, Stage, Status
from evo.tasks.base import Case, Task, TensorSpec
from evo.tasks.draws import Draw, Variation
from evo.tasks.random_tests import Finding, refused, same_pattern


class Judge:
    """Judges outputs of any candidate on inputs known by their draw. Not thread-safe.

    Args:
        device: Where the oracle computes; it must be the kind of device that made the candidate's inputs, for seeds draw
            other values on another kind.
        capacity_bytes: See `Oracle`.
    """

    def __init__(self, device: torch.device | str = "cpu", capacity_bytes: int = DEFAULT_CAPACITY_BYTES) -> None:
        self._oracle = Oracle(device, capacity_bytes)
        self._pattern: tuple[str, str, Draw, Finding] | None = None

    def judge(self, task: Task, case: Case, draw: Draw, outputs: Outputs, stage: Stage = Stage.GATE) -> Verdict | Failure:
        """Compares what a candidate made of `make_inputs` with the oracle's answer.

        Too little memory is no fault of the candidate: then all answers are forgotten, and this one is compared in the host's
        memory, once.

        Args:
            task, case, draw: Which inputs.
            outputs: See `evo.evaluation.oracle.flatten_outputs`; on any device.
            stage: Recorded in a failure.

        Raises:
            torch.OutOfMemoryError: The oracle's answer does not fit even alone.
        """
        try:
            verdict = self._judge_on_device(task, case, draw, outputs, stage)
        except torch.OutOfMemoryError:
            verdict = None
        if verdict is None:  # out of the handler, which holds the frames and so the tensors that did not fit
            verdict = self._judge_on_host(task, case, draw, outputs, stage)
        where = ", ".join(filter(None, (f"case {case.name}", draw.words)))
        return dataclasses.replace(verdict, message=f"{where}: {verdict.message}")

    def _judge_on_device(self, task: Task, case: Case, draw: Draw, outputs: Outputs, stage: Stage) -> Verdict | Failure:
        expected = self._oracle.expected(task, case, draw)
        outputs = _moved(outputs, self._oracle.device)
        verdict = self._judge(task, case, draw, outputs, expected, stage)
        # Asked only of what failed, since each costs the reference further calls.
        for more in (self._oracle.with_spread, self._oracle.with_rounding):
            if not _may_be_luck(task, verdict):
                break
            known = more(task, case, draw)
            if known is not None:
                expected, verdict = known, self._judge(task, case, draw, outputs, known, stage)
        if expected.roundings and _may_be_luck(task, verdict):
            tolerance = dataclasses.replace(task.tolerance, ratio=LUCK * task.tolerance.ratio)
            near = self._judge(dataclasses.replace(task, tolerance=tolerance), case, draw, outputs, expected, stage)
            known = None if isinstance(near, Failure) else self._oracle.with_rounding(task, case, draw, MANY_ROUNDINGS)
            verdict = verdict if known is None else self._judge(task, case, draw, outputs, known, stage)
        return verdict

    def _judge_on_host(self, task: Task, case: Case, draw: Draw, outputs: Outputs, stage: Stage) -> Verdict | Failure:
        host = torch.device("cpu")
        outputs = _moved(outputs, host)
        self._oracle.clear()
        _release()
        expected = self._oracle.expected(task, case, draw)
        self._oracle.clear()
        exact = _moved(expected.exact, host)
        reference = exact if expected.reference is expected.exact else _moved(expected.reference, host)
        del expected
        _release()
        return self._judge(task, case, draw, outputs, Expected(exact, reference), stage)

    def _judge(
        self, task: Task, case: Case, draw: Draw, outputs: Outputs, expected: Expected, stage: Stage = Stage.GATE
    ) -> Verdict | Failure:
        if task.statistic is not None:
            return structure_failure(outputs, expected.reference, stage) or self._test(task, case, draw, outputs, stage)
        return compare(outputs, expected, task.tolerance, arithmetic(task, case, draw, expected.reference), stage)

    def _test(self, task: Task, case: Case, draw: Draw, outputs: Outputs, stage: Stage) -> Verdict | Failure:
        assert task.statistic is not None
        inputs = make_inputs(task, case, draw.seed, self._oracle.device, draw.variation)
        outputs = _moved(outputs, self._oracle.device)
        findings = list(task.statistic(inputs.arguments, outputs.tensors))
        pattern = next((finding for finding in findings if finding.pattern is not None), None)
        before, self._pattern = self._pattern, (task.name, case.name, draw, pattern) if pattern is not None else None
        # A candidate's draws of a case are judged one after the other, so these two are of one candidate, or of two honest ones.
        if pattern is not None and before is not None and before[:2] == (task.name, case.name) and before[2] != draw:
            findings.append(same_pattern(pattern, before[3]))
        wrong = refused(findings)
        if wrong is not None:
            chance = f" (probability at most {wrong.probability:.1e})" if wrong.probability else ""
            return Failure(
                Status.WRONG_VALUES, stage, f"random outputs fail a test: {wrong.text}{chance}", f"wrong_values:{stage}:statistic"
            )
        return Verdict(0.0, f"random outputs pass {len(findings)} tests")


def _may_be_luck(task: Task, verdict: Verdict | Failure) -> bool:
    """Whether more that is known of the reference's rounding may let outputs pass."""
    return isinstance(verdict, Failure) and verdict.status is Status.WRONG_VALUES and task.statistic is None


def arithmetic(task: Task, case: Case, draw: Draw, outputs: Outputs) -> Arithmetic:
    """What an honest kernel's rounding may amount to on these inputs."""
    specs = [*task.parameters.values(), *(item for item in case.arguments if isinstance(item, TensorSpec))]
    wide = any(spec.dtype == "float32" for spec in specs)
    return Arithmetic(
        summed_terms(case, outputs),
        draw.variation is Variation.CONSTANT,
        PRODUCT_EPSILON[task.tolerance.products] if wide else 0.0,
    )


def summed_terms(case: Case, outputs: Outputs) -> int:
    """An upper estimate of how many terms are summed for one output element.

    The longest dimension of an input covers products and reductions of rows or columns; inputs many times larger than the
    smallest output cover reductions of several dimensions.
    """
    specs = [item for item in case.arguments if isinstance(item, TensorSpec)]
    longest = max((size for spec in specs for size in spec.shape), default=1)
    smallest = min((tensor.numel() for tensor in outputs.tensors if tensor.numel()), default=1)
    return max(1, longest, max((spec.numel for spec in specs), default=1) // smallest)


def _moved(outputs: Outputs, device: torch.device) -> Outputs:
    return Outputs(outputs.structure, tuple(tensor.to(device) for tensor in outputs.tensors))


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
