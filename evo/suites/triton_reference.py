"""A kernel of Triton as the reference of a task: on a GPU it runs as it is, on the CPU under Triton's interpreter in a sandbox."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError

from evo.errors import TaskError, WorkerDied
from evo.evaluation.aliasing import Sharing
from evo.evaluation.interpreted_files import Run
from evo.records import Failure, content_id
from evo.suites.interpreting import DEADLINE_S, interpreting_server
from evo.tasks.base import Case, Task
from evo.tasks.inputs import Inputs

TARGET = "cuda:90"
"""What the interpreted module takes the GPU for."""


class BeyondItsTensors(TaskError):
    """The kernel touches memory outside of its tensors."""


class TritonReference:
    """Calls the entry of a module. Threads may share one.

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
            TaskError: It cannot be interpreted, or fails; `BeyondItsTensors` where that is why.
        """
        if any(item.is_cuda for item in _tensors(arguments)):
            with _not_autotuned():
                return self.loaded()(*arguments)
        return self._interpreted(arguments)

    def loaded(self) -> Callable[..., Any]:
        """What a user of the module calls."""
        if self._module is None:
            self._module = _imported(self._source)
        entry: Callable[..., Any] = getattr(self._module, self._entry)
        return entry

    def _interpreted(self, arguments: tuple[Any, ...]) -> Any:
        task = _task(self._entry, self._mutates)
        made = tempfile.TemporaryDirectory(prefix="triton-evolve-reference-", ignore_cleanup_errors=True)
        with made as folder, interpreting_server() as server:
            run = Run(Path(folder), task, Inputs(arguments), 0)
            request = run.request(self._source, {}, TARGET, backwards=False)
            try:
                answer = server.call(
                    "evo.evaluation.interpret_child:interpret", request, deadline_s=DEADLINE_S, scratch=Path(folder)
                )
            except WorkerDied as error:
                raise TaskError("the suite's kernel under Triton's interpreter", given=error.reason) from error
            outputs = run.outputs(answer)
            if isinstance(outputs, Failure):
                kind = BeyondItsTensors if ":OutOfBounds:" in outputs.signature else TaskError
                raise kind("the suite's kernel under Triton's interpreter", given=outputs.message)
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


@contextmanager
def _not_autotuned() -> Iterator[None]:
    """Autotuned kernels take the first configuration that fits, which is what a trace takes: a judge has no use for speed, trying all of
    them for each shape takes seconds, and each trial of a kernel that updates its arguments would update them once more."""

    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        known = {**self.nargs, **kwargs}
        problem: Exception | None = None
        for config in self.prune_configs(kwargs):
            try:
                if config.pre_hook is not None:
                    config.pre_hook({**known, **config.all_kwargs()})
                return self.fn.run(*args, **kwargs, **config.all_kwargs())
            except (OutOfResources, CompileTimeAssertionFailure, PTXASError) as error:  # as Triton's own, before anything ran
                problem = error
            finally:
                self.best_config = config
        raise problem or ValueError(f"{self.base_fn.__name__}: no configuration is left of its list")

    before = Autotuner.run
    Autotuner.run = run
    try:
        yield
    finally:
        Autotuner.run = before
