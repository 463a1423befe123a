"""What the sandboxed tracer child runs: imports a candidate module, calls its entry on fakes, answers with a plan or a failure."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.compiler
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.compiler.errors import CompilationError
from triton.runtime.autotuner import Autotuner

from evo.tasks.inputs import differentiable_places
from evo.tracing.facade import CudaFacade, fake_cuda
from evo.tracing.front_end import TracedKernel, ttir_of
from evo.tracing.plan import LaunchPlan
from evo.tracing.pruning import keep_needed
from evo.tracing.recorder import Recording, RecordingMode, Refused, Untraceable, fake_tensor
from evo.tracing.targets import TARGETS

SOURCE_NAME = "kernel.py"
MAX_TEXT = 100_000
"""Characters of an exception's text that are looked at."""


def trace(request: dict[str, Any]) -> dict[str, Any]:
    """Traces one variant on one case.

    Args:
        request: ``source``, ``entry``, ``form``, ``configuration``, ``arguments`` (TensorSpec in JSON form with strides resolved, or
            plain values), ``parameters``, ``init_arguments``, ``backward``, ``target``, ``seed``.

    Returns:
        ``{"plan": …}`` or ``{"failure": {"status", "stage", "message", "signature"}}``.
    """
    recording = Recording(request["target"], triton.__version__, int(request["seed"]))
    random.seed(request["seed"])
    np.random.seed(request["seed"] % 2**32)  # the candidate's global state differs in the second trace
    torch.manual_seed(request["seed"])
    try:
        with fake_cuda(recording, TARGETS[request["target"]]), _recorded_launches(recording, request["configuration"]):
            module = load_module(request["source"], request["configuration"])
            return {"plan": _run(module, request, recording).to_json()}
    except BaseException as error:  # noqa: BLE001  whatever candidate code raises is a verdict
        return {"failure": describe(error)}


def trace_each(request: dict[str, Any]) -> dict[str, Any]:
    """Traces one variant several times in this process. Each time imports the module anew, so that what it honestly keeps from one call
    to the next belongs to one case; only state outside of the module can pass from one to another.

    Args:
        request: As for `trace`, with a list ``cases`` of ``arguments`` and ``configuration`` in place of these two.

    Returns:
        ``{"answers": […]}``, one of `trace` per case, in order.
    """
    common = {key: value for key, value in request.items() if key != "cases"}
    return {"answers": [trace({**common, **case}) for case in request["cases"]]}


def load_module(source: str, configuration: Mapping[str, Any]) -> ModuleType:
    """Imports candidate source from a file in the working folder (Triton reads sources back) and sets its `CONFIG`.

    Raises:
        Refused: The source has no such knob.
    """
    path = Path(SOURCE_NAME)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("kernel", path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernel"] = module
    spec.loader.exec_module(module)
    knobs = {key: value for key, value in configuration.items() if not key.startswith("autotune:")}
    if knobs:
        declared = getattr(module, "CONFIG", None)
        if not isinstance(declared, dict) or not set(knobs) <= set(declared):
            raise Refused(f"the configuration sets {', '.join(knobs)}, which the module's CONFIG does not declare")
        declared.update(knobs)
    return module


VALUE_ERRORS = ("DataDependentOutputException", "DynamicOutputShapeException")
"""By name, since they lie in private modules of torch."""


def describe(error: BaseException) -> dict[str, str]:
    """A failure record in JSON form for an exception of candidate code."""
    text = str(error)[:MAX_TEXT].strip() or type(error).__name__
    line = _candidate_line(error)
    if isinstance(error, Refused):
        status, stage = "rejected", "trace"
    elif value := _value_asked(error):
        status, stage = "untraceable", "trace"
        text = f"the wrapper needs a value on the host: {value}"
    elif isinstance(error, CompilationError):
        status, stage = "compile_error", "compile"
        text = "\n".join(filter(None, (text, _said_inside(error))))
    else:
        status, stage = "trace_error", "trace"
        text = f"{type(error).__name__}: {text}"
    message = f"{text}\n  at line {line}" if line and status != "compile_error" else text
    signature = f"{status}:{type(error).__name__}:" + re.sub(r"[\d'\"`]+|0x[0-9a-f]+", "#", text.splitlines()[-1])[:120]
    return {"status": status, "stage": stage, "message": message[:8000], "signature": signature}


def _said_inside(error: BaseException) -> str:
    """What a function that a kernel calls was refused for: Triton's message may end with the line of the call alone."""
    said = ""
    while isinstance(error, CompilationError) and not error.error_message and error.__cause__ is not None:
        error = error.__cause__
        said = str(getattr(error, "error_message", None) or error)[:MAX_TEXT].strip()
    return said


def _value_asked(error: BaseException | None) -> str:
    """What asked for a value that a trace does not have, empty if nothing did; torch's own checks raise another error from that one."""
    while error is not None:
        if isinstance(error, Untraceable) or type(error).__name__ in VALUE_ERRORS:
            return str(error)[:MAX_TEXT].strip() or type(error).__name__
        error = error.__cause__
    return ""


def _candidate_line(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(SOURCE_NAME)]
    return f"{frames[-1].lineno}: {frames[-1].line}" if frames else ""


def _run(module: ModuleType, request: dict[str, Any], recording: Recording) -> LaunchPlan:
    entry = getattr(module, request["entry"], None)
    if entry is None:
        raise Refused(f"the module does not define {request['entry']}")
    mode = FakeTensorMode(allow_non_fake_inputs=False)
    arguments = [fake_tensor(item, mode) if isinstance(item, dict) else item for item in request["arguments"]]
    parameters = {name: fake_tensor(spec, mode) for name, spec in request["parameters"].items()}
    for position, argument in enumerate(arguments):
        if isinstance(argument, torch.Tensor):
            recording.supply("argument", position, argument)
    for name, parameter in parameters.items():
        recording.supply("parameter", name, parameter)
    facade = CudaFacade(host_allowed=True)
    with mode, RecordingMode(recording), facade:
        call = entry_of(entry, request, parameters)
        facade.host_allowed = False
        wanted = differentiable(call, request, parameters, arguments)
        recorded_call(call, arguments, wanted, recording, ("prepare", "prepare"))
        outputs, gradients = recorded_call(call, arguments, wanted, recording, ("forward", "backward"))
    return keep_needed(recording.plan(outputs, gradients))


def entry_of(entry: Any, request: Mapping[str, Any], parameters: dict[str, torch.Tensor]) -> Callable[..., Any]:
    """What is called: the function, or the module made from its class, with its parameters loaded and its weights prepared.

    Of its own tensors, those ask for a gradient that the task's backward phase gives one; what it prepares of them is a constant.
    """
    if request["form"] == "function":
        return entry  # type: ignore[no-any-return]
    module = entry(*request["init_arguments"])
    module.load_state_dict(parameters, strict=True, assign=True)
    module.requires_grad_(False)
    for tensor in differentiable(module, request, parameters, ()):
        tensor.requires_grad_()
    if hasattr(module, "prepare"):
        with torch.no_grad():
            module.prepare()
    return module  # type: ignore[no-any-return]


def differentiable(
    call: Any, request: Mapping[str, Any], parameters: Mapping[str, torch.Tensor], arguments: Sequence[Any]
) -> list[torch.Tensor]:
    """What gradients are asked for, in the order of `evo.tasks.inputs.Inputs.differentiable`: a module's own tensors of parameters
    that say so, then arguments; nothing where the task has no backward phase."""
    if not request["backward"]:
        return []
    state = call.state_dict(keep_vars=True) if request["form"] == "module" else {}
    own = [state[name] for name, parameter in parameters.items() if parameter.requires_grad]
    return own + [item for item in arguments if isinstance(item, torch.Tensor) and item.requires_grad]


def recorded_call(
    call: Callable[..., Any],
    arguments: list[Any],
    wanted: list[torch.Tensor],
    recording: Recording,
    phases: tuple[str, str],
) -> tuple[Any, tuple[int | None, ...]]:
    """One call, forward and (where gradients are wanted) backward, recorded in two phases: encoded outputs and gradients."""
    recording.phase = phases[0]
    with torch.set_grad_enabled(bool(wanted)):
        result = call(*arguments)
    outputs = recording.encode(result)
    if not wanted:
        return outputs, ()
    tensors = tensors_in(result)
    places = differentiable_places(tensors)
    seeds = []
    for place in places:
        item = tensors[place]
        recording.phase = "sources"
        recording.steps.setdefault("sources", [])
        seed = item.new_empty_strided(item.shape, item.stride())
        if phases[0] == "forward":
            recording.supply("gradient", place, seed)
        seeds.append(seed)
    recording.steps.pop("sources", None)
    recording.phase = phases[1]
    gradients = torch.autograd.grad([tensors[place] for place in places], wanted, seeds, allow_unused=True)
    return outputs, tuple(None if item is None else recording.value(item) for item in gradients)


def tensors_in(result: Any) -> list[torch.Tensor]:
    """The tensors of a result in the order in which they are judged, however it is nested."""
    if isinstance(result, torch.Tensor):
        return [result]
    items = result.values() if isinstance(result, Mapping) else result if isinstance(result, tuple | list) else ()
    return [tensor for item in items for tensor in tensors_in(item)]


@contextmanager
def _recorded_launches(recording: Recording, configuration: Mapping[str, Any]) -> Iterator[None]:
    """Replaces compilation by TTIR and launch by a record, and autotuning by the configuration's choice."""

    def run_autotuned(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        pruned = self.prune_configs(kwargs)
        name = self.base_fn.__name__
        recording.choices[name] = len(pruned)
        config = pruned[int(configuration.get(f"autotune:{name}", 0)) % len(pruned)]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
        result = self.fn.run(*args, **kwargs, **config.all_kwargs())
        self.nargs = None
        return result

    def compile_to_ttir(src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> TracedKernel:
        return TracedKernel(recording, ttir_of(src, target, options))

    with ExitStack() as stack:
        stack.callback(setattr, triton.compiler, "compile", triton.compiler.compile)
        stack.callback(setattr, Autotuner, "run", Autotuner.run)
        triton.compiler.compile = compile_to_ttir
        Autotuner.run = run_autotuned
        yield


_WARM_UP = """
import torch, triton, triton.language as tl

@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.sum(tl.exp(tl.load(x + at, mask=at < n, other=0.0)), axis=0)
    for start in range(0, n, BLOCK):
        tl.store(y + at, tl.where(at < n, total, 0.0).to(y.dtype.element_ty), mask=at < n)

def entry(x):
    y = torch.empty_like(x)
    kernel[(triton.cdiv(x.numel(), 64),)](x, y.view(-1), x.numel(), BLOCK=64, num_warps=1)
    return y
"""


def warm_up() -> None:
    """Traces a small module in the fork server, so that what torch and Triton import or build lazily is there for every child."""
    torch.set_num_threads(1)
    spec = {"shape": [128], "dtype": "float32", "strides": [1], "offset": 0}
    request = {
        "source": _WARM_UP,
        "entry": "entry",
        "form": "function",
        "configuration": {},
        "arguments": [spec],
        "parameters": {},
    }
    answer = trace({**request, "init_arguments": [], "backward": False, "target": "cuda:90", "seed": 0})
    if "plan" not in answer:
        raise RuntimeError(f"the tracer cannot trace a plain kernel: {answer}")


if os.environ.get("TRITON_EVOLVE_ROLE") == "trace":
    warm_up()
