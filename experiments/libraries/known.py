"""Which libraries have a kernel for a task, and whether it does there what the task says."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from evo.evaluation.inputs import make_inputs
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import compute_outputs
from evo.records import Failure
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from experiments.libraries import flag_gems_calls, liger_calls, torch_calls

LIBRARIES: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "torch": torch_calls.CALLS,
    "liger_kernel": liger_calls.CALLS,
    "flag_gems": flag_gems_calls.CALLS,
}
"""Importable name → task → call."""


def calls_for(task: str) -> dict[str, Callable[..., Any]]:
    """Library → its call for a task, of the libraries that can be imported here."""
    return {name: calls[task] for name, calls in LIBRARIES.items() if task in calls and importlib.util.find_spec(name)}


def versions() -> dict[str, str]:
    """Of the libraries that are here."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name.replace("_", "-"))
        except PackageNotFoundError:
            continue
    return found


def why_not(task: Task, case: Case, call: Callable[..., Any], device: str, seed: int = 0) -> str:
    """Empty where a call's outputs pass the task's judge on a case, whatever their strides; else what is wrong, or how the call failed."""
    draw = Draw(seed)

    def contiguous(*arguments: Any) -> Any:
        returned = call(*arguments)
        return torch.utils._pytree.tree_map(lambda leaf: leaf.contiguous() if isinstance(leaf, torch.Tensor) else leaf, returned)

    try:
        outputs = compute_outputs(dataclasses.replace(task, reference=contiguous), make_inputs(task, case, seed, device))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a library raises
        return " ".join(f"{type(error).__name__}: {error}".split())[:200]
    verdict = Judge(device).judge(task, case, draw, outputs)
    return verdict.message.splitlines()[0] if isinstance(verdict, Failure) else ""
