"""The tier for machines without a GPU: the source runs under Triton's interpreter, latencies are modelled from the compiled plan.

A verdict of this tier is trusted least: the interpreter executes candidate Python, in a sandboxed process that is given inputs
and nothing else. Inputs of a secret seed (drawn when the tier is made) are written as raw bytes; outputs come back as raw bytes,
are checked as data of a hostile process and judged here, where expected values live. What it cannot see: races between programs
(they run one after the other), rounding of the GPU's own instructions, and anything that only the compiled binary does.
"""

from __future__ import annotations

import math
import os
import secrets
import stat
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo.errors import WorkerDied
from evo.evaluation.estimate import modelled_latency_us
from evo.evaluation.inputs import Inputs, make_grad_outputs, make_inputs
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import Outputs, flatten_outputs
from evo.evaluation.tier import Candidate, Checked, Tier, Timing
from evo.records import Failure, LatencyKind, Stage, Status, TrustLevel
from evo.tasks.base import Case, Task
from evo.tasks.draws import Draw
from evo.tracing.plan import VALUE_DTYPES
from evo.tracing.sandbox import ForkServer, Limits
from evo.tracing.targets import target_named

MAX_OUTPUT_BYTES = 512 << 20
ORACLE_BYTES = 256 << 20
_MAX_RANK = 16
_MAX_NESTING = 16


class InterpretedTier(Tier):
    """See the module's docstring.

    Args:
        target: Key of `evo.tracing.targets.TARGETS` that latencies are modelled for.
        deadline_s: Wall seconds of one checked run.
    """

    def __init__(self, target: str, *, deadline_s: float = 120.0) -> None:
        self.target = target_named(target)
        self._deadline_s = deadline_s
        limits = Limits(cpu_s=math.ceil(deadline_s), file_bytes=MAX_OUTPUT_BYTES)
        self._server = ForkServer(
            "interpret",
            limits,
            preload=("evo.evaluation.interpret_child",),
            environment={"TRITON_INTERPRET": "1"},
        )
        self._judge = Judge("cpu", ORACLE_BYTES)
        self._secret = secrets.randbits(48)

    @property
    def device(self) -> str:
        """The target's key, marked as modelled."""
        return f"{self.target.key} (modelled)"

    @property
    def trust(self) -> TrustLevel:
        """INTERPRETED."""
        return TrustLevel.INTERPRETED

    @property
    def latency_kind(self) -> LatencyKind:
        """MODELLED."""
        return LatencyKind.MODELLED

    @property
    def gates_on_binaries(self) -> bool:
        """False: the source itself runs."""
        return False

    @property
    def gpu_s(self) -> float:
        """Always 0."""
        return 0.0

    def gate_cases(self, task: Task) -> tuple[Case, ...]:
        """The small cases: the interpreter needs about a millisecond per program."""
        return task.small_cases

    def check(self, task: Task, candidate: Candidate, draws: Sequence[Draw]) -> Checked | Failure:
        """Interprets the candidate's source on the inputs of each draw and judges what it computed."""
        worst = Checked(0.0, candidate.plan.scratch_bytes)
        for draw in draws:
            checked = self._check(task, candidate, Draw(draw.seed ^ self._secret, draw.variation))
            if isinstance(checked, Failure):
                return checked
            worst = max(worst, checked, key=lambda item: item.error_ratio)
        return worst

    def _check(self, task: Task, candidate: Candidate, draw: Draw) -> Checked | Failure:
        seed = draw.seed
        inputs = make_inputs(task, candidate.case, seed, "cpu", draw.variation)
        with tempfile.TemporaryDirectory(prefix="triton-evolve-interpret-", ignore_cleanup_errors=True) as folder:
            run = _Run(Path(folder), task, inputs, seed)
            try:
                answer = self._server.call(
                    "evo.evaluation.interpret_child:interpret",
                    run.request(candidate, self.target.key),
                    deadline_s=self._deadline_s,
                    scratch=Path(folder),
                )
                outputs = run.outputs(answer)
            except WorkerDied as error:
                return self._died(task, candidate, error)
            except _InvalidAnswer as error:
                return _failure(Status.RUNTIME_ERROR, f"the interpreter's answer is not valid: {error}", "answer")
        if isinstance(outputs, Failure):
            text = f"case {candidate.case.name}: {outputs.message}"
            return Failure(outputs.status, outputs.stage, text, outputs.signature)
        verdict = self._judge.judge(task, candidate.case, draw, outputs)
        return verdict if isinstance(verdict, Failure) else Checked(verdict.error_ratio, candidate.plan.scratch_bytes)

    def latency_us(self, task: Task, candidate: Candidate) -> float | Failure:
        """The modelled latency; see `evo.evaluation.estimate`."""
        return modelled_latency_us(candidate.plan, candidate.binaries, candidate.case, self.target)

    def compare(self, task: Task, candidate: Candidate, baseline: Candidate, *, pairs: int, incumbent: float) -> Timing | Failure:
        """Modelled latencies side by side, without pairs."""
        ours, theirs = (modelled_latency_us(item.plan, item.binaries, item.case, self.target) for item in (candidate, baseline))
        return Timing(ours, theirs, ())

    def noise_floor(self) -> float:
        """0: a model has no noise."""
        return 0.0

    def start(self) -> None:
        """Starts the fork server ahead of need."""
        self._server.start()

    def fresh(self) -> None:
        """Nothing to do: every check runs in a new process anyway."""

    def close(self) -> None:
        """Ends the fork server."""
        self._server.close()

    def _died(self, task: Task, candidate: Candidate, error: WorkerDied) -> Failure:
        where = f"case {candidate.case.name}: {task.entry} under Triton's interpreter"
        if error.reason == "deadline":
            return _failure(Status.TIMEOUT, f"{where} took more than {self._deadline_s:g} s", "deadline")
        return _failure(Status.RUNTIME_ERROR, f"{where} ended its process: {error.reason}", error.reason)


class _InvalidAnswer(Exception):
    """What a sandbox answered is malformed or hostile."""


class _Run:
    """The files of one interpreted run: inputs written for the child, outputs read back with suspicion."""

    def __init__(self, folder: Path, task: Task, inputs: Inputs, seed: int) -> None:
        self._folder = folder
        self._task = task
        self._inputs = inputs
        self._seed = seed

    def request(self, candidate: Candidate, target: str) -> dict[str, Any]:
        """Writes the inputs; what `interpret_child.interpret` is asked."""
        task, inputs = self._task, self._inputs
        seeds = _output_gradients(task, inputs, self._seed) if task.backward else ()
        return {
            "source": candidate.source,
            "entry": task.entry,
            "form": task.form,
            "configuration": dict(candidate.configuration),
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
            "output_gradients": [self._write(f"gradient-{index}.bin", seed) for index, seed in enumerate(seeds)],
        }

    def outputs(self, answer: Mapping[str, Any]) -> Outputs | Failure:
        """What the run produced, judged by form alone.

        Raises:
            _InvalidAnswer: The answer is not what an honest child can send.
        """
        if "failure" in answer:
            try:
                return Failure.from_json(answer["failure"])
            except (TypeError, ValueError, KeyError) as error:
                raise _InvalidAnswer(str(error)) from error
        changed = self._changed_inputs()
        if changed:
            text = f"{', '.join(changed)} must not be modified, but was; write to memory of your own"
            return _failure(Status.GUARD_VIOLATION, text, f"modified:{changed[0]}")
        mutated = [self._mutated(position) for position in self._task.mutates]
        gradients = [self._read(item) for item in _list(answer.get("gradients"))]
        return flatten_outputs(self._decode(answer.get("outputs")), mutated, gradients)

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
            raise _InvalidAnswer("an output that is no tensor and no container")
        ((kind, value),) = node.items()
        if kind == "tensor":
            return self._read(node)
        items = _list(value)
        if kind == "dict":
            pairs = [_list(item) for item in items]
            if any(len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
                raise _InvalidAnswer("a dict of outputs")
            return {key: self._decode(item, depth + 1) for key, item in pairs}
        if kind not in ("tuple", "list"):
            raise _InvalidAnswer(f"an output of kind {kind!r}")
        decoded = [self._decode(item, depth + 1) for item in items]
        return tuple(decoded) if kind == "tuple" else decoded

    def _read(self, node: Any) -> torch.Tensor:
        spec = node.get("tensor") if isinstance(node, dict) else None
        if not isinstance(spec, dict) or spec.get("dtype") not in VALUE_DTYPES:
            raise _InvalidAnswer("a tensor without a known dtype")
        shape, strides = (_sizes(spec.get(key)) for key in ("shape", "strides"))
        file = spec.get("file")
        if len(shape) != len(strides) or not isinstance(file, str) or not file.startswith("output-") or "/" in file:
            raise _InvalidAnswer("a tensor's shape, strides or file")
        width = VALUE_DTYPES[spec["dtype"]]
        span = 0 if 0 in shape else sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) + 1
        return _tensor(self._bytes(file, span * width), getattr(torch, spec["dtype"]), shape, strides, 0)

    def _bytes(self, file: str, size: int) -> bytes:
        """The content of a file that must be a plain one of exactly that size."""
        if size > MAX_OUTPUT_BYTES:
            raise _InvalidAnswer(f"{size} bytes in one output; at most {MAX_OUTPUT_BYTES} are read")
        try:
            handle = os.open(self._folder / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise _InvalidAnswer(f"{file}: {error.strerror}") from error
        with os.fdopen(handle, "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                raise _InvalidAnswer(f"{file} has {found.st_size} bytes; expected {size}")
            data = stream.read(size)
        if len(data) != size:
            raise _InvalidAnswer(f"{file} ends early")
        return data


def _output_gradients(task: Task, inputs: Inputs, seed: int) -> tuple[torch.Tensor, ...]:
    """The gradients that the oracle sends back through outputs that have one; see `evo.evaluation.oracle`."""
    copies = inputs.clone()
    leading: Sequence[Any] = (copies.parameters,) if task.form == "module" else ()
    with torch.enable_grad():
        flat = flatten_outputs(task.reference(*leading, *copies.arguments))
    return make_grad_outputs(tuple(tensor.detach() for tensor in flat.tensors if tensor.requires_grad), seed)


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
        raise _InvalidAnswer("a tensor's sizes")
    return tuple(items)


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or len(value) > 1024:
        raise _InvalidAnswer("a list of at most 1024 expected")
    return value


def _failure(status: Status, message: str, signature: str) -> Failure:
    return Failure(status, Stage.GATE, message, f"{status.value}:gate:{signature}")
