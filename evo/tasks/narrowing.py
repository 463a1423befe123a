"""Finds where a reference that is given float64 falls back to fewer bits: expected values are no more exact than that."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from evo.tasks.base import Task
from evo.tasks.inputs import make_inputs, to_float64


def narrowings(task: Task) -> list[str]:
    """Each place in the task's file where the reference makes fewer bits of float64 on its smallest case, as ``FILE:LINE: TEXT``.

    The reference must run; a task whose oracle is not computed in float64 has none.
    """
    if task.oracle != "pytorch64":
        return []
    case = min(task.small_cases, key=lambda case: case.bytes)
    inputs = to_float64(make_inputs(task, case, 0, "cpu"))
    parameters: tuple[Any, ...] = (inputs.parameters,) if task.form == "module" else ()
    with torch.no_grad(), _Watch(task.path) as watch:
        task.reference(*parameters, *inputs.clone().arguments)
    return list(watch.places)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, path: Path | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._file = None if path is None else str(path)
        self.places: dict[str, None] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(_floats(item) == 8 for item in args) and 0 < _floats(result) < 8:
            self.places[self._place()] = None
        return result

    def _place(self) -> str:
        """The innermost line of the task's file that is at work."""
        frame = sys._getframe(2)
        while frame is not None and self._file is not None:
            if str(Path(frame.f_code.co_filename).resolve()) == self._file:
                text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
                return f"{self._file}:{frame.f_lineno}: {text}"
            frame = frame.f_back  # type: ignore[assignment]
        return "the reference"


def _floats(item: Any) -> int:
    """Bytes of an element of a floating-point tensor; 0 for anything else."""
    return item.element_size() if isinstance(item, torch.Tensor) and item.dtype.is_floating_point else 0
