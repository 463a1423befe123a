"""A kernel of Triton as the reference of a task: on a GPU it runs as it is, on the CPU under Triton's interpreter in a sandbox."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from evo.errors import TaskError, WorkerDied
from evo.evaluation.aliasing import Sharing
from evo.evaluation.interpreted_files import MAX_OUTPUT_BYTES, Run
from evo.records import Failure, content_id
from evo.tasks.base import Case, Task
from evo.tasks.inputs import Inputs
from evo.tracing.sandbox import ForkServer, Limits

DEADLINE_S = 60.0
"""Of one interpreted call."""
TARGET = "cuda:90"
"""What the interpreted module takes the GPU for."""


class TritonReference:
    """Calls the entry of a module. Threads may share one; interpreted calls take turns.

    Args:
        source: The module.
        entry: What of it is called.
        mutates: Positions of arguments that a call updates.
        sharing: Which outputs lie in an argument or overlap each other, see `evo.evaluation.aliasing.Sharing`.
    """

    def __init__(self, source: str, entry: str, mutates: Sequence[int], sharing: Sharing) -> None:
        self.sharing = sharing
        self._source, self._entry, self._mutates = source, entry, tuple(mutates)
        self._returned = {
            int(output.split()[1]): int(given.split()[1])
            for output, given in sharing
            if output.startswith("output ") and given.startswith("argument ")
        }
        self._module: ModuleType | None = None

    def __call__(self, *arguments: Any) -> Any:
        """What the kernel gives; mutated arguments are updated.

        Raises:
            TaskError: It cannot be interpreted, or fails.
        """
        if any(item.is_cuda for item in _tensors(arguments)):
            return self._called()(*arguments)
        return self._interpreted(arguments)

    def _called(self) -> Callable[..., Any]:
        if self._module is None:
            self._module = _imported(self._source)
        entry: Callable[..., Any] = getattr(self._module, self._entry)
        return entry

    def _interpreted(self, arguments: tuple[Any, ...]) -> Any:
        task = _task(self._entry, self._mutates)
        with _LOCK, tempfile.TemporaryDirectory(prefix="triton-evolve-reference-", ignore_cleanup_errors=True) as folder:
            run = Run(Path(folder), task, Inputs(arguments), 0)
            request = run.request(self._source, {}, TARGET, backwards=False)
            try:
                answer = _server().call(
                    "evo.evaluation.interpret_child:interpret", request, deadline_s=DEADLINE_S, scratch=Path(folder)
                )
            except WorkerDied as error:
                raise TaskError("the suite's kernel under Triton's interpreter", given=error.reason) from error
            outputs = run.outputs(answer)
            if isinstance(outputs, Failure):
                raise TaskError("the suite's kernel under Triton's interpreter", given=outputs.message)
            returned = run.returned(answer)
        count = len(outputs.tensors) - len(self._mutates)
        for position, tensor in zip(self._mutates, outputs.tensors[count:], strict=True):
            arguments[position].detach().copy_(tensor)
        return with_arguments(returned, self._returned, arguments)


def _task(entry: str, mutates: tuple[int, ...]) -> Task:
    """What a run under the interpreter asks of a task."""
    none = Case("none", (), 1, 0)
    return Task(
        name="reference", description="", entry=entry, reference=_task, training_cases=(none,), held_out_cases=(),
        small_cases=(Case("nothing", (), 1, 0),), starting_kernels=(), mutates=mutates,
    )  # fmt: skip


def with_arguments(value: Any, returned: Mapping[int, int], arguments: Sequence[Any]) -> Any:
    """The outputs, with the argument itself, or a view of it, in place of an output that is one. Which are was seen of one call; an output
    of another that the argument's memory cannot hold is a tensor of its own."""
    count = iter(range(1 << 16))

    def replaced(node: Any) -> Any:
        if isinstance(node, torch.Tensor):
            place = returned.get(next(count))
            if place is None:
                return node
            theirs = arguments[place]
            if theirs.shape == node.shape:
                return theirs
            last = theirs.storage_offset() + sum((size - 1) * step for size, step in zip(node.shape, node.stride(), strict=True))
            fits = (last + 1) * theirs.element_size() <= theirs.untyped_storage().nbytes()
            return theirs.as_strided(node.shape, node.stride(), theirs.storage_offset()) if fits else node
        if isinstance(node, tuple | list):
            return type(node)(replaced(item) for item in node)
        return {key: replaced(item) for key, item in node.items()} if isinstance(node, Mapping) else node

    return replaced(value)


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, tuple | list) else ()
    return [tensor for item in parts for tensor in _tensors(item)]


def _imported(source: str) -> ModuleType:
    """From a file that stays as long as this process, since Triton reads sources back."""
    folder = Path(tempfile.mkdtemp(prefix="triton-evolve-reference-"))
    path = folder / f"suite_{content_id(source)}.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


_LOCK = threading.Lock()
_SERVERS: list[ForkServer] = []


def _server() -> ForkServer:
    """One for all references of this process; it ends with the process."""
    if not _SERVERS:
        limits = Limits(cpu_s=int(DEADLINE_S), file_bytes=MAX_OUTPUT_BYTES)
        environment = {"TRITON_INTERPRET": "1"}
        _SERVERS.append(ForkServer("interpret", limits, preload=("evo.evaluation.interpret_child",), environment=environment))
    return _SERVERS[0]
