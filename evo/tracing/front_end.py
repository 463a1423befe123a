"""What becomes of a kernel in the tracer: Triton's front end makes its TTIR, and launches of it are recorded instead of done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import triton
import triton.compiler

from evo.tracing.plan import OPTION_TYPES, Kernel
from evo.tracing.recorder import Recording, Refused


def ttir_of(src: Any, target: Any, options: Mapping[str, Any] | None) -> Kernel:
    """Runs Triton's front end and its TTIR passes, and no further.

    Raises:
        CompilationError: The front end's own, with the source line.
        Refused: The kernel is not Triton (Gluon) or asks for options that a plan may not carry.
    """
    from triton._C.libtriton import ir

    backend = triton.compiler.make_backend(target)
    parsed = backend.parse_options(dict(options or {}, **src.parse_options()))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = src.make_ir(target, parsed, backend.get_codegen_implementation(parsed), backend.get_module_map(), context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, src.language)
    if "ttir" not in stages:
        raise Refused("only Triton kernels can be traced, not Gluon ones")
    module = stages["ttir"](module, {"target": target, **parsed.__dict__})
    kept = {key: value for key, value in parsed.__dict__.items() if key in OPTION_TYPES}
    signature = tuple((str(name), _tupled(kind)) for name, kind in src.signature.items())
    return Kernel(module.get_entry_func_name(), module.str_nodebug(), signature, kept, origin_of(src))


def origin_of(src: Any) -> dict[str, Any]:
    """The name of a kernel's function and those constants it is compiled with that are plain values; see `Kernel.origin`."""
    constants = {}
    for path, value in src.constants.items():
        with suppress(TypeError):
            if len(path) == 1:
                constants[str(src.fn.arg_names[path[0]])] = _plain_constant(value)
    return {"function": src.fn.__name__, "constants": constants}


def _plain_constant(value: Any) -> Any:
    if isinstance(value, triton.language.constexpr):
        value = value.value
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, triton.language.dtype):
        return {"dtype": value.name}
    if isinstance(value, triton.runtime.jit.JITFunction):
        return {"function": value.__name__}
    if type(value) is tuple:
        return {"tuple": [_plain_constant(item) for item in value]}
    raise TypeError(f"a constant of type {type(value).__name__}")


class TracedKernel:
    """Stands where Triton expects a CompiledKernel; launching it records."""

    function = 0
    packed_metadata = ()

    def __init__(self, recording: Recording, kernel: Kernel) -> None:
        self._recording = recording
        self._kernel = kernel
        self.n_regs = self.n_spills = 0

    def launch_metadata(self, grid: Any, stream: Any, *args: Any) -> None:
        """Nothing is profiled here."""

    def run(self, x: int, y: int, z: int, *rest: Any) -> None:
        """Records the launch; `rest` is stream, function, metadata, two hooks and then the bound arguments."""
        count = len(self._kernel.signature)
        self._recording.launch(self._kernel, (x, y, z), rest[len(rest) - count :])

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args: self._recording.launch(self._kernel, grid, args)


def _tupled(kind: Any) -> Any:
    return tuple(_tupled(item) for item in kind) if isinstance(kind, tuple | list) else str(kind)
