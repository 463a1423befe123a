"""Reads what a task is to be made of: a function or module from a file, and an example of its inputs."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from evo.errors import InputError
from evo.tasks.base import DTYPE_BYTES, Argument, TensorSpec

SHORT = {
    "f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u8": "uint8", "b": "bool", "b1": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """A reference as it was found.

    Attributes:
        path: Of its file.
        name: In the file.
        function: What is called with the inputs; for a module, the module itself.
        names: Of the inputs.
        state: Parameters and buffers of a module, by name.
        init_arguments: What a module was made with, where those are plain values.
        is_module: Whether it is an `nn.Module` class.
        guesses: What a person should check, a line each.
    """

    path: Path
    name: str
    function: Any
    names: tuple[str, ...]
    state: Mapping[str, torch.Tensor] = field(default_factory=dict)
    init_arguments: tuple[Any, ...] = ()
    is_module: bool = False
    guesses: tuple[str, ...] = ()


def read_reference(text: str) -> tuple[Given, tuple[Argument, ...] | None]:
    """What ``FILE:NAME`` leads to, and the inputs that the file itself gives by `get_inputs`, if it does.

    Raises:
        InputError: No such file or name, it cannot be run, or it is neither a function nor a module.
    """
    place, _, name = text.rpartition(":")
    if not place or not name.isidentifier():
        raise InputError("--reference", given=text, allowed="FILE:NAME, such as model.py:Model")
    path = Path(place)
    if not path.is_file():
        raise InputError(f"--reference: {path}", given="no such file")
    module = _run(path)
    found = getattr(module, name, None)
    if found is None:
        public = [
            key for key, value in vars(module).items() if callable(value) and getattr(value, "__module__", "") == module.__name__
        ]
        raise InputError(f"{path}: {name}", given="no such name", allowed=public or "a file that defines it")
    inputs = _own_inputs(module, path)
    if inspect.isclass(found) and issubclass(found, torch.nn.Module):
        return _module(path, name, found, module), inputs
    if not callable(found) or inspect.isclass(found):
        raise InputError(
            f"{path}: {name}", given=f"a {type(found).__name__}", allowed="a function, or a subclass of torch.nn.Module"
        )
    return Given(path, name, found, _names(found)), inputs


def _run(path: Path) -> ModuleType:
    name = f"triton_evolve_init_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(str(path), given="not a Python file", allowed="a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise InputError(str(path), given=line_of(error), action=_cure(error, path)) from error
    return module


def _cure(error: BaseException, path: Path) -> str:
    name = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name and ((path.parent / f"{name}.py").exists() or (path.parent / name).is_dir()):
        return f"a task file is whole by itself: take what it needs of {name} into {path.name}, or install {name} as a package"
    return "the file must import without errors"


def _module(path: Path, name: str, cls: type[torch.nn.Module], module: ModuleType) -> Given:
    guesses = []
    make = getattr(module, "get_init_inputs", None)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            given = list(make()) if make is not None else []
            made = cls(*given)
    except Exception as error:
        action = "give a function get_init_inputs that returns the arguments of its constructor, as a list"
        raise InputError(f"{path}: {name}", given=line_of(error), action=action) from error
    if made.training and any(
        isinstance(item, torch.nn.modules.batchnorm._BatchNorm | torch.nn.Dropout) for item in made.modules()
    ):
        guesses.append("the module is in evaluation mode: it keeps no running statistics and drops nothing")
    made.eval()
    plain = all(item is None or isinstance(item, int | float | bool | str) for item in given)
    if not plain:
        guesses.append("arguments of the constructor are no plain values, so that of a kernel is given none")
    state = {**dict(made.named_parameters()), **dict(made.named_buffers())}
    for key, item in state.items():
        if (dtype := str(item.dtype).removeprefix("torch.")) not in DTYPE_BYTES:
            raise InputError(f"{path}: {name}: {key}", given=f"a parameter or buffer of {dtype}", allowed=DTYPE_BYTES)
    return Given(path, name, made, _names(made.forward), state, tuple(given) if plain else (), True, tuple(guesses))


def _names(function: Any) -> tuple[str, ...]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ()
    return tuple(item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD))


def _own_inputs(module: ModuleType, path: Path) -> tuple[Argument, ...] | None:
    """Those of `get_inputs`, drawn without data."""
    make = getattr(module, "get_inputs", None)
    if make is None:
        return None
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), _Draws() as draws:
            given = list(make())
    except Exception as error:
        raise InputError(f"{path}: get_inputs", given=line_of(error), action="give --inputs instead") from error
    return tuple(_argument(item, draws, f"{path}: get_inputs: input {place}") for place, item in enumerate(given))


class _Draws(TorchFunctionMode):
    """Notes what tensors are drawn from."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[int, tuple[str, tuple[Any, ...]]] = {}
        self._alive: list[torch.Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every torch function."""
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self._alive.append(result)  # keeps its id
            name = getattr(func, "__name__", "")
            source = args[0] if args and isinstance(args[0], torch.Tensor) else None
            cast = name in ("to", "float", "half", "bfloat16", "contiguous", "cuda")
            self.found[id(result)] = self.found.get(id(source), (name, args)) if cast else (name, args)
        return result


def _argument(item: Any, draws: _Draws, where: str) -> Argument:
    if item is None or isinstance(item, bool | int | float):
        return item
    if not isinstance(item, torch.Tensor):
        raise InputError(where, given=f"a {type(item).__name__}", allowed="tensors and plain numbers")
    dtype = str(item.dtype).removeprefix("torch.")
    if dtype not in DTYPE_BYTES:
        raise InputError(where, given=dtype, allowed=DTYPE_BYTES)
    shape = tuple(map(int, item.shape))
    strides = None if item.is_contiguous() else tuple(map(int, item.stride()))
    name, args = draws.found.get(id(item), ("", ()))
    numbers = [value for value in args if isinstance(value, int) and not isinstance(value, bool)]
    if name == "randint" and numbers:
        low, high = (numbers[0], numbers[1]) if len(numbers) > 1 else (0, numbers[0])
        return TensorSpec(shape, dtype, "integers", low=low, high=high, strides=strides)
    if name == "rand":
        return TensorSpec(shape, dtype, "uniform", strides=strides)
    if name in ("zeros", "ones"):
        return TensorSpec(shape, dtype, "zeros" if name == "zeros" else "ones", strides=strides)
    return _drawn(shape, dtype, strides)


def _drawn(shape: tuple[int, ...], dtype: str, strides: tuple[int, ...] | None = None) -> TensorSpec:
    if dtype.startswith(("float", "bfloat")):
        return TensorSpec(shape, dtype, strides=strides)
    return TensorSpec(shape, dtype, "integers", low=0, high=2, strides=strides)


def read_inputs(text: str) -> tuple[Argument, ...]:
    """Inputs from a line such as ``f32[1024,512], i64[1024], 3, 1e-5``.

    Raises:
        InputError: It cannot be read.
    """
    found: list[Argument] = []
    for part in re.findall(r"[^,\[\]]+(?:\[[^\]]*\])?", text):
        item = part.strip()
        match = re.fullmatch(r"(\w+)\[([\d,\s]*)\]", item)
        if match:
            dtype = SHORT.get(match[1], match[1])
            if dtype not in DTYPE_BYTES:
                raise InputError("--inputs", given=item, allowed=[*SHORT, *DTYPE_BYTES])
            shape = tuple(int(size) for size in match[2].split(",") if size.strip())
            if 0 in shape:
                raise InputError("--inputs", given=item, allowed="sizes of at least 1")
            found.append(_drawn(shape, dtype))
        elif item:
            found.append(_plain(item))
    if not found:
        raise InputError("--inputs", given=text, allowed='such as "f32[1024,512], i64[1024], 3"')
    return tuple(found)


def _plain(item: str) -> Argument:
    try:
        value = ast.literal_eval(item)
    except (ValueError, SyntaxError):
        value = item
    if value is not None and not isinstance(value, bool | int | float):
        raise InputError("--inputs", given=item, allowed="DTYPE[SIZE,…], or a number, True, False or None")
    return value


def line_of(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def checked_count(given: Given, inputs: Sequence[Argument]) -> tuple[str, ...]:
    """Names for the inputs.

    Raises:
        InputError: More than the reference takes.
    """
    if given.names and len(inputs) > len(given.names):
        raise InputError(
            f"{given.path}: {given.name}", given=f"{len(inputs)} inputs", allowed=f"it takes {', '.join(given.names)}"
        )
    return tuple(given.names[place] if place < len(given.names) else f"input{place}" for place in range(len(inputs)))
