"""The files of one interpreted run: inputs written for the sandboxed child, outputs read back with suspicion."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo.evaluation.inputs import Inputs, differentiable_places, make_grad_outputs
from evo.evaluation.oracle import Outputs, flatten_outputs
from evo.records import Failure, Stage, Status
from evo.tasks.base import Task
from evo.tracing.plan import VALUE_DTYPES

MAX_OUTPUT_BYTES = 512 << 20
_MAX_RANK = 16
_MAX_NESTING = 16


class InvalidAnswer(Exception):
    """What a sandbox answered is malformed or hostile."""


class Run:
    """The files of one interpreted run: inputs written for the child, outputs read back with suspicion."""

    def __init__(self, folder: Path, task: Task, inputs: Inputs, seed: int) -> None:
        self._folder = folder
        self._task = task
        self._inputs = inputs
        self._seed = seed

    def request(self, source: str, configuration: Mapping[str, Any], target: str, *, backwards: bool) -> dict[str, Any]:
        """Writes the inputs; what `interpret_child.interpret` is asked."""
        task, inputs = self._task, self._inputs
        seeds = _output_gradients(task, inputs, self._seed) if task.backward else {}
        return {
            "source": source,
            "entry": task.entry,
            "form": task.form,
            "configuration": dict(configuration),
            "reversed": backwards,
            "init_arguments": list(task.init_arguments),
            "backward": task.backward,
            "target": target,
            "arguments": [
                self._write(f"argument-{position}.bin", item) if isinstance(item, torch.Tensor) else item
                for position, item in enumerate(inputs.arguments)
            ],
            "parameters": {
                name: self._write(f"parameter-{index}.bin", tensor)
                for index, (name, tensor) in enumerate(inputs.parameters.items())
            },
            "output_gradients": [{"place": place, **self._write(f"gradient-{place}.bin", seed)} for place, seed in seeds.items()],
        }

    def outputs(self, answer: Mapping[str, Any]) -> Outputs | Failure:
        """What the run produced, judged by form alone.

        Raises:
            InvalidAnswer: The answer is not what an honest child can send.
        """
        if "failure" in answer:
            try:
                return Failure.from_json(answer["failure"])
            except (TypeError, ValueError, KeyError) as error:
                raise InvalidAnswer(str(error)) from error
        changed = self._changed_inputs()
        if changed:
            text = f"{', '.join(changed)} must not be modified, but was; write to memory of your own"
            return Failure(Status.GUARD_VIOLATION, Stage.GATE, text, f"guard_violation:gate:modified:{changed[0]}")
        mutated = [self._mutated(position) for position in self._task.mutates]
        gradients = [self._read(item) for item in _list(answer.get("gradients"))]
        return flatten_outputs(self._decode(answer.get("outputs")), mutated, gradients)

    def returned(self, answer: Mapping[str, Any]) -> Any:
        """What the entry returned, nested as it was, of an answer that `outputs` took."""
        return self._decode(answer.get("outputs"))

    def _write(self, file: str, tensor: torch.Tensor) -> dict[str, Any]:
        storage = _storage_bytes(tensor)
        path = self._folder / file
        path.write_bytes(storage.tobytes())
        path.chmod(0o666)  # the child may run as another user, and kernels that update in place write here
        return {
            "file": file,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": list(tensor.shape),
            "strides": list(tensor.stride()),
            "offset": tensor.storage_offset(),
            "elements": storage.size // tensor.element_size(),
            "requires_grad": tensor.requires_grad,
        }

    def _changed_inputs(self) -> list[str]:
        named = [
            (f"parameter-{index}.bin", f"parameter {name}", tensor)
            for index, (name, tensor) in enumerate(self._inputs.parameters.items())
        ]
        named += [
            (f"argument-{position}.bin", f"argument {position}", item)
            for position, item in enumerate(self._inputs.arguments)
            if isinstance(item, torch.Tensor) and position not in self._task.mutates
        ]
        return [
            name
            for file, name, tensor in named
            if self._bytes(file, tensor.untyped_storage().nbytes()) != _storage_bytes(tensor).tobytes()
        ]

    def _mutated(self, position: int) -> torch.Tensor:
        tensor = self._inputs.arguments[position].detach()
        data = self._bytes(f"argument-{position}.bin", tensor.untyped_storage().nbytes())
        return _tensor(data, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())

    def _decode(self, node: Any, depth: int = 0) -> Any:
        if node is None:
            return None
        if depth > _MAX_NESTING or not isinstance(node, dict) or len(node) != 1:
            raise InvalidAnswer("an output that is no tensor and no container")
        ((kind, value),) = node.items()
        if kind == "tensor":
            return self._read(node)
        items = _list(value)
        if kind == "dict":
            pairs = [_list(item) for item in items]
            if any(len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
                raise InvalidAnswer("a dict of outputs")
            return {key: self._decode(item, depth + 1) for key, item in pairs}
        if kind not in ("tuple", "list"):
            raise InvalidAnswer(f"an output of kind {kind!r}")
        decoded = [self._decode(item, depth + 1) for item in items]
        return tuple(decoded) if kind == "tuple" else decoded

    def _read(self, node: Any) -> torch.Tensor:
        spec = node.get("tensor") if isinstance(node, dict) else None
        if not isinstance(spec, dict) or spec.get("dtype") not in VALUE_DTYPES:
            raise InvalidAnswer("a tensor without a known dtype")
        shape, strides = (_sizes(spec.get(key)) for key in ("shape", "strides"))
        file = spec.get("file")
        if len(shape) != len(strides) or not isinstance(file, str) or not file.startswith("output-") or "/" in file:
            raise InvalidAnswer("a tensor's shape, strides or file")
        width = VALUE_DTYPES[spec["dtype"]]
        span = 0 if 0 in shape else sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1
        return _tensor(self._bytes(file, span * width), getattr(torch, spec["dtype"]), shape, strides, 0)

    def _bytes(self, file: str, size: int) -> bytes:
        """The content of a file that must be a plain one of exactly that size."""
        if size > MAX_OUTPUT_BYTES:
            raise InvalidAnswer(f"{size} bytes in one output; at most {MAX_OUTPUT_BYTES} are read")
        try:
            handle = os.open(self._folder / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise InvalidAnswer(f"{file}: {error.strerror}") from error
        try:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise InvalidAnswer(f"{file} has {found.st_size} bytes; expected {size}")
            with os.fdopen(handle, "rb", closefd=False) as stream:  # which refuses a folder, and leaves it open
                data = stream.read(size)
        finally:
            os.close(handle)
        if len(data) != size:
            raise InvalidAnswer(f"{file} ends early")
        return data


def _output_gradients(task: Task, inputs: Inputs, seed: int) -> dict[int, torch.Tensor]:
    """By place, the gradients that the oracle sends back through outputs that have one; see `evo.evaluation.oracle`."""
    copies = inputs.clone()
    leading: Sequence[Any] = (copies.parameters,) if task.form == "module" else ()
    with torch.enable_grad():
        flat = flatten_outputs(task.reference(*leading, *copies.arguments))
    places = differentiable_places(flat.tensors)
    return dict(zip(places, make_grad_outputs(tuple(flat.tensors[place].detach() for place in places), seed), strict=True))


def _storage_bytes(tensor: torch.Tensor) -> np.ndarray[Any, np.dtype[np.uint8]]:
    whole = torch.empty(0, dtype=torch.uint8).set_(tensor.detach().untyped_storage())
    array: np.ndarray[Any, np.dtype[np.uint8]] = whole.numpy()
    return array


def _tensor(data: bytes, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int], offset: int) -> torch.Tensor:
    if not data:
        return torch.empty_strided(tuple(shape), tuple(strides), dtype=dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype).as_strided(tuple(shape), tuple(strides), offset)


def _sizes(value: Any) -> tuple[int, ...]:
    items = _list(value)
    if len(items) > _MAX_RANK or any(
        not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < 2**40 for item in items
    ):
        raise InvalidAnswer("a tensor's sizes")
    return tuple(items)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > 1024:
        raise InvalidAnswer("a list of at most 1024 expected")
    return value
