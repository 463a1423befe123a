"""What a hosted candidate's process runs: the module as it is, on tensors that the host lends, at the host's word.

Candidate code has this process to itself: no clock of ours, no expected value, no seed and no other candidate is in it, and nothing it
says is believed. The host sends requests over a socket and reads outputs from the memory it lent; a request that is answered too early
shows in outputs that are not there yet.
"""

from __future__ import annotations

import os
import random
import re
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import triton
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

from evo.evaluation.hosted_memory import Slot, aligned, open_block, span
from evo.evaluation.hosted_recorder import Watch, allow_index, choose_autotuned, watch_launches
from evo.evaluation.hosted_results import WrongStructure, description_of, nesting_of, sharing_of
from evo.evaluation.inputs import differentiable_places
from evo.tracing.pruning import keep_needed
from evo.tracing.recorder import Recording, Refused
from evo.tracing.sandbox import receive_message, send_message
from evo.tracing.seccomp import refuse_connections
from evo.tracing.trace_child import SOURCE_NAME, differentiable, entry_of, load_module, recorded_call, tensors_in

SOCKET = "host.sock"


def serve(request: dict[str, Any]) -> dict[str, Any]:
    """Answers the host's requests until it goes away.

    Args:
        request: ``device`` (``cuda`` or ``cpu``: under Triton's interpreter), ``source``, ``entry``, ``form``, ``configuration``,
            ``init_arguments``, ``backward``, ``mutates``, ``target`` (of recordings; None where nothing is recorded).
    """
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(SOCKET)
    # What a module could tell this process by is what it would find in use: no role, no arguments of ours.
    for name in ("TRITON_EVOLVE_ROLE", "PYTORCH_NVML_BASED_CUDA_CHECK"):
        os.environ.pop(name, None)
    sys.argv = ["serve.py"]
    if request["target"] is not None:
        _hide()
    random.seed(os.urandom(16))
    torch.seed()
    served = _Served(request)
    answers: Mapping[str, Callable[[dict[str, Any], list[int]], Any]] = {
        "confine": served.confine,
        "load": served.load,
        "lend": served.lend,
        "prepare": served.prepare,
        "run": served.run,
        "describe": served.describe,
        "observe": served.observe,
    }
    while True:
        try:
            data, descriptors = _receive(connection)
        except EOFError:
            return {"ended": True}
        try:
            answer = {"done": answers[data["do"]](data, descriptors)}
        except BaseException as error:  # noqa: BLE001  whatever candidate code raises is a verdict
            answer = {"failure": describe(error)}
        send_message(connection, answer)


def describe(error: BaseException) -> dict[str, str]:
    """A failure record in JSON form for an exception of candidate code, with the candidate's line."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(SOURCE_NAME)]
    statuses = {
        Refused: "rejected", WrongStructure: "wrong_structure", CompilationError: "compile_error", OutOfResources: "out_of_resources",
        torch.OutOfMemoryError: "out_of_resources",
    }  # fmt: skip
    status = next((name for kind, name in statuses.items() if isinstance(error, kind)), "runtime_error")
    text = str(error).strip() or type(error).__name__
    if status == "runtime_error":
        text = f"{type(error).__name__}: {text}"
    if frames and status != "compile_error":
        text += f"\n  at line {frames[-1].lineno}: {frames[-1].line}"
    signature = f"{status}:hosted:{type(error).__name__}:" + re.sub(r"[\d'\"`]+|0x[0-9a-f]+", "#", text.splitlines()[0])[:100]
    return {"status": status, "stage": "gate", "message": text[:8000], "signature": signature}


_Tensors = tuple[list[Any], dict[str, torch.Tensor], list[torch.Tensor], torch.Tensor | None]


def _hide() -> None:
    """Leaves nothing of ours to be found by name; what is imported already goes on working."""
    os.environ.pop("PYTHONPATH", None)
    own = {entry for entry in sys.path if (Path(entry) / "evo" / "tracing").is_dir() and not (Path(entry) / "torch").is_dir()}
    sys.path[:] = [entry for entry in sys.path if entry not in own]
    for name in [name for name in sys.modules if name.partition(".")[0] in ("evo", "operators", "population_store")]:
        del sys.modules[name]


class _Served:
    """The module and what it was lent."""

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._device: str = request["device"]
        self._watch = Watch()
        self._stack = ExitStack()
        self._opened: dict[int, torch.Tensor] = {}
        self._blocks: list[torch.Tensor] = []
        self._views: dict[int, _Tensors] = {}
        self._sets: list[dict[str, Any]] = []
        self._slot_bytes = 0
        self._calls: dict[int, Callable[..., Any]] = {}
        self._made: dict[int, list[torch.Tensor]] = {}
        self._nested: dict[int, Any] = {}
        self._aliases: list[tuple[str, str]] = []
        self._module: Any = None

    def confine(self, data: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Makes ready for the module, and tells whether no socket can be connected from here on; nothing of the module has run yet."""
        request = self._request
        interpreted = self._device == "cpu"
        if interpreted:
            torch.set_num_threads(1)
            allow_index()
        else:
            torch.empty(1, device="cuda")  # makes the context that memory is opened in
            triton.set_allocator(lambda size, alignment, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
        choose_autotuned(request["configuration"], None)
        watch_launches(self._watch, self._stack, interpreted=interpreted, recording=request["target"] is not None)
        return {"connections_refused": refuse_connections()}  # CUDA has its context by now, and this process its host

    def load(self, data: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Imports the module; after `confine`."""
        request = self._request
        self._module = load_module(request["source"], request["configuration"])
        if not hasattr(self._module, request["entry"]):
            raise Refused(f"the module does not define {request['entry']}")
        return {}

    def lend(self, data: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Maps the host's blocks (inputs, then outputs); `sets` says where tensors lie, `slot_bytes` how much room a set's outputs have.

        What was mapped stays so, since a module may hold on to what it was given. Files come with the first mention of a block.
        """
        self._made, self._nested, self._calls, self._views = {}, {}, {}, {}
        files = iter(descriptors)
        for handle in data["blocks"]:
            if handle["key"] not in self._opened:
                self._opened[handle["key"]] = open_block(handle, None if handle["ipc"] else next(files))
        self._blocks = [self._opened[handle["key"]] for handle in data["blocks"]]
        self._sets = data["sets"]
        self._slot_bytes = data["slot_bytes"]
        return {"sum": int(self._blocks[0][:64].sum())}

    def prepare(self, data: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Makes what is called on each set: modules get their parameters here, and prepare their weights."""
        for number in range(len(self._sets)):
            self._calls[number] = self._entry(self._tensors(number)[1])
        return {}

    def run(self, data: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Calls the entry on sets and leaves the outputs in the lent memory. `watched` fills undefined memory and names operators."""
        self._made, self._nested = {}, {}
        if data["watched"]:
            self._watch.launches = 0
            torch.use_deterministic_algorithms(True, warn_only=True)
            if self._device == "cuda":
                torch.cuda.reset_peak_memory_stats()
        for number in data["sets"]:
            arguments, parameters, seeds, lent = self._tensors(number)
            with ExitStack() as stack:
                if data["watched"]:
                    stack.enter_context(self._watch.operators_named())
                with torch.set_grad_enabled(self._request["backward"]):
                    result = self._calls[number](*arguments)
                wanted = differentiable(self._calls[number], self._request, parameters, arguments)
                gradients = self._gradients(result, number, wanted, seeds)
            self._place(number, result, [arguments[position] for position in self._request["mutates"]], gradients)
            if data["watched"]:
                self._aliases = sharing_of(tensors_in(result), arguments, parameters)
            if lent is not None and data["watched"]:
                self._blocks[0][slice(*self._sets[number]["range"])].copy_(lent)
        if self._device == "cuda":
            torch.cuda.synchronize()
        torch.use_deterministic_algorithms(False)
        return {}

    def describe(self, data: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """What the last run returned and used; asked for after the clock was read."""
        return {
            "results": [[self._nested[number], [description_of(item) for item in made]] for number, made in self._made.items()],
            "operators": sorted(self._watch.operators),
            "launches": self._watch.launches,
            "aliases": self._aliases,
            "peak_bytes": torch.cuda.max_memory_allocated() if self._device == "cuda" else 0,
        }

    def observe(self, data: dict[str, Any], descriptors: list[int]) -> dict[str, Any]:
        """Records the plan of calls on set 0, as the tracer does but on real tensors, with `calls` unrecorded calls in between."""
        recording = Recording(self._request["target"], triton.__version__, 0)
        arguments, parameters = self._own(0)
        for position, item in enumerate(arguments):
            if isinstance(item, torch.Tensor):
                recording.supply("argument", position, item)
        for name, parameter in parameters.items():
            recording.supply("parameter", name, parameter)
        choose_autotuned(self._request["configuration"], recording)
        returned: list[Any] = []
        with self._watch.recorded(recording):
            call = self._entry(parameters)
            wanted = differentiable(call, self._request, parameters, arguments)

            def kept(*given: Any) -> Any:
                returned.append(call(*given))
                return returned[-1]

            recorded_call(kept, arguments, wanted, recording, ("prepare", "prepare"))
        for _ in range(data["calls"]):
            with torch.set_grad_enabled(bool(wanted)):
                call(*self._own(0)[0])
        for position in self._request["mutates"]:
            arguments[position].copy_(self._own(0)[0][position])
        with self._watch.recorded(recording):
            outputs, gradients = recorded_call(kept, arguments, wanted, recording, ("forward", "backward"))
        self._place(0, returned[-1], [arguments[position] for position in self._request["mutates"]], [])
        if self._device == "cuda":
            torch.cuda.synchronize()
        return {"plan": keep_needed(recording.plan(outputs, gradients)).to_json()}

    def _entry(self, parameters: dict[str, torch.Tensor]) -> Callable[..., Any]:
        return entry_of(getattr(self._module, self._request["entry"]), self._request, parameters)

    def _gradients(self, result: Any, number: int, wanted: list[torch.Tensor], seeds: list[torch.Tensor]) -> list[torch.Tensor]:
        if not self._request["backward"]:
            return []
        tensors = tensors_in(result)
        found = [(place, tuple(tensors[place].shape)) for place in differentiable_places(tensors)]
        asked = [(place, tuple(seed.shape)) for place, seed in zip(self._sets[number]["places"], seeds, strict=True)]
        if found != asked:
            raise WrongStructure(
                f"outputs (by position, with shapes) that a gradient flows back through: {found}; expected {asked}"
            )
        gradients = torch.autograd.grad([tensors[place] for place, _ in found], wanted, seeds, allow_unused=True)
        return [torch.zeros_like(w) if g is None else g for g, w in zip(gradients, wanted, strict=True)]

    def _tensors(self, number: int) -> _Tensors:
        """Arguments, parameters and gradients of a set, in the lent memory, or in a copy (the last item) where that is not the
        device's."""
        if number in self._views:
            return self._views[number]
        block, described, base = self._blocks[0], self._sets[number], 0
        lent = None
        if block.device.type != self._device:
            base, last = described["range"]
            block = lent = block[base:last].to(self._device)

        def tensor(item: Any) -> Any:
            if not isinstance(item, dict):
                return item
            slot = Slot(**{**item, "start": item["start"] - base})
            return slot.view(block).requires_grad_(slot.requires_grad)

        parameters = {name: tensor(item) for name, item in described["parameters"].items()}
        seeds = [tensor(item) for item in described["gradients"]]
        found = [tensor(item) for item in described["arguments"]], parameters, seeds, lent
        if lent is None:
            self._views[number] = found
        return found

    def _own(self, number: int) -> tuple[list[Any], dict[str, torch.Tensor]]:
        """Copies that each own their storage, as a caller's tensors do."""
        arguments, parameters, _, _ = self._tensors(number)
        described = self._sets[number]
        copied = [
            _owned(t, s) if isinstance(t, torch.Tensor) else t for t, s in zip(arguments, described["arguments"], strict=True)
        ]
        return copied, {name: _owned(tensor, described["parameters"][name]) for name, tensor in parameters.items()}

    def _place(self, number: int, result: Any, mutated: list[torch.Tensor], gradients: list[torch.Tensor]) -> None:
        nested, tensors = nesting_of(result)
        made = [*tensors, *(item.detach() for item in (*mutated, *gradients))]
        at, end = number * self._slot_bytes, (number + 1) * self._slot_bytes
        for item in made:
            if type(item) is not torch.Tensor or item.device.type != self._device:
                raise WrongStructure(f"an output is a {type(item).__name__} on {item.device}; expected a tensor on the device")
            elements = span(item.shape, item.stride())
            size = elements * item.element_size()
            if at + size > end:
                raise WrongStructure(f"the outputs take more than the {self._slot_bytes} bytes there are for them")
            if size:
                flat = item.as_strided((elements,), (1,), item.storage_offset())
                self._blocks[1][at : at + size].view(item.dtype).copy_(flat)
            at += aligned(size)
        self._made[number], self._nested[number] = made, nested


def _owned(tensor: torch.Tensor, slot: Mapping[str, Any]) -> torch.Tensor:
    elements = slot["nbytes"] // tensor.element_size()
    whole = torch.empty(elements, dtype=tensor.dtype, device=tensor.device)
    start = tensor.storage_offset() - slot["offset"]
    with torch.no_grad():
        whole.copy_(tensor.detach().as_strided((elements,), (1,), start))
    return whole.as_strided(tensor.shape, tensor.stride(), slot["offset"]).requires_grad_(tensor.requires_grad)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One request; descriptors come with a byte of their own before it."""
    marker, descriptors, _, _ = socket.recv_fds(connection, 1, 8)
    if not marker:
        raise EOFError("the host went away")
    return receive_message(connection), list(descriptors)


def warm_up() -> None:
    """Done once in the server: what torch imports when operators are first watched, which takes seconds and touches no device."""
    with Watch().operators_named():
        torch.empty(1).tolist()


if os.environ.get("TRITON_EVOLVE_ROLE") == "hosted-candidate":  # nobody watches a baseline
    warm_up()
