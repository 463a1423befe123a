"""Watches what a module launches and which torch operators it runs while it really runs, in the candidate's own process.

Launches are seen where Triton hands them to its launcher, and then really made: a recorded call differs from an unrecorded one in time
alone. With a `Recording` every call becomes part of a launch plan, by the very code that the tracer uses, so that two plans compare.
What runs here shares a process with the candidate, which could undo the watching: a recording is evidence against a module that acts
differently when traced, and a list of operators keeps honest modules to a task's rules; neither is what makes values or times trusted.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import triton.compiler
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner

from evo.tracing.front_end import ttir_of
from evo.tracing.plan import Kernel
from evo.tracing.recorder import Recording, RecordingMode

_TYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64", "bool": "i1", "uint8": "u8"}


class Watch:
    """Counts launches, names operators, and records both while it is told to."""

    def __init__(self) -> None:
        self.launches = 0
        self.operators: set[str] = set()
        self.recording: Recording | None = None

    def launched(self, kernel: Kernel | None, grid: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
        """Notes one launch; `kernel` is None where nothing records."""
        self.launches += 1
        if self.recording is not None and kernel is not None:
            with _disable_current_modes():
                self.recording.launch(kernel, grid, arguments)

    @contextmanager
    def operators_named(self) -> Iterator[None]:
        """Collects the names of torch operators that run inside."""
        with _Names(self.operators):
            yield

    @contextmanager
    def recorded(self, recording: Recording) -> Iterator[None]:
        """Everything inside becomes part of a recording."""
        self.recording = recording
        try:
            with RecordingMode(recording):
                yield
        finally:
            self.recording = None


class _Names(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, names: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace != "prim":
            self._names.add(f"{func.namespace}.{func._opname}")
        return func(*args, **(kwargs or {}))


def watch_launches(watch: Watch, stack: ExitStack, *, interpreted: bool, recording: bool) -> None:
    """Sees every launch from here on, until the stack unwinds. Called before the module is imported.

    Args:
        watch: Is told.
        stack: Undoes it.
        interpreted: Whether kernels run under Triton's interpreter, which compiles nothing: records then lack code.
        recording: Whether launches will be recorded; costs a second run of Triton's front end per kernel.
    """
    if interpreted:
        _watch_interpreter(watch, stack)
        return
    compile_kernel = triton.compiler.compile

    def watched(src: Any, target: Any = None, options: Any = None, _env_vars: Any = None) -> Any:
        compiled = compile_kernel(src, target=target, options=options, _env_vars=_env_vars)
        return _Watched(watch, ttir_of(src, target, options) if recording else None, compiled)

    stack.callback(setattr, triton.compiler, "compile", compile_kernel)
    triton.compiler.compile = watched


class _Watched:
    """Stands before a CompiledKernel."""

    def __init__(self, watch: Watch, kernel: Kernel | None, compiled: Any) -> None:
        self._watch, self._kernel, self._compiled = watch, kernel, compiled

    def __getattr__(self, name: str) -> Any:
        if name in ("function", "module", "n_regs", "n_spills", "n_max_threads"):
            _ = self._compiled.run  # they are there once it has been loaded
        return getattr(self._compiled, name)

    def run(self, x: int, y: int, z: int, *rest: Any) -> Any:
        """Launches; `rest` is stream, function, metadata, two hooks and then the bound arguments."""
        self._note((x, y, z), rest)
        with self._apart():
            return self._compiled.run(x, y, z, *rest)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def launch(*args: Any, **options: Any) -> Any:
            self._note(tuple(grid), args)
            with self._apart():
                return self._compiled[grid](*args, **options)

        return launch

    def _apart(self) -> AbstractContextManager[Any]:
        """Where launches are recorded, the scratch memory that a launcher asks torch for is no step of the module's."""
        return nullcontext() if self._kernel is None else _disable_current_modes()

    def _note(self, grid: tuple[Any, ...], arguments: tuple[Any, ...]) -> None:
        if self._kernel is not None:
            arguments = arguments[len(arguments) - len(self._kernel.signature) :]
        self._watch.launched(self._kernel, grid, arguments)


def _watch_interpreter(watch: Watch, stack: ExitStack) -> None:
    call = interpreter.GridExecutor.__call__

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = {key: value for key, value in kwargs.items() if key in inspect.getfullargspec(self.fn).args}
        bound = inspect.getcallargs(self.fn, *args, **given)
        grid = tuple(self.grid(bound) if callable(self.grid) else self.grid)
        signature = tuple((name, "constexpr" if name in self.constexprs else _kind(bound[name])) for name in self.arg_names)
        kernel = Kernel(self.fn.__name__, "", signature, {})
        watch.launched(kernel, grid, tuple(bound[name] for name in self.arg_names))
        with _disable_current_modes():  # the interpreter's own copies are no part of the module
            return call(self, *args, **kwargs)

    stack.callback(setattr, interpreter.GridExecutor, "__call__", call)
    interpreter.GridExecutor.__call__ = watched


def _kind(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_kind, value))
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return "*" + _TYPES.get(dtype, dtype.replace("uint", "u").replace("int", "i"))
    if isinstance(value, bool):
        return "i1"
    return "fp32" if isinstance(value, float) else "i64" if isinstance(value, int) else "constexpr"


def choose_autotuned(configuration: dict[str, Any], recording: Recording | None) -> None:
    """Autotuned kernels take the configuration's choice, as when they were traced, until this process ends."""

    def run(self: Autotuner, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        pruned = self.prune_configs(kwargs)
        name = self.base_fn.__name__
        if recording is not None:
            recording.choices[name] = len(pruned)
        config = pruned[int(configuration.get(f"autotune:{name}", 0)) % len(pruned)]
        self.best_config = config
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **config.all_kwargs()})
        return self.fn.run(*args, **kwargs, **config.all_kwargs())

    Autotuner.run = run


def allow_index() -> None:
    """Lets interpreted kernels use their scalars as indices (of ranges) with any numpy, until this process ends."""
    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        # Triton 3.6 converts arrays of one element with int(), which numpy refuses from 2.4 on.
        scope.set_attr(tensor, "__index__", lambda scalar: int(scalar.handle.data.item()))

    interpreter._patch_lang_tensor = patch
