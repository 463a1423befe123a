"""Reads a KernelBench problem, from a checkout that the user names, as a Task; none of the suite's code lives here.

A problem file defines `Model`, `get_init_inputs` and `get_inputs`, and its sizes as constants of the module. The file is run once per
case with some constants replaced, and `get_inputs` under a recorder: no data is drawn, what it would draw becomes a `TensorSpec`.
So the evaluator draws inputs of the same distribution on its own device from its own seeds. Parameters of the model become
further arguments of the task, drawn around their initial values rather than at them: a weight of ones cannot be left out.

The suite draws most inputs from [0, 1), where a ReLU is the identity and zeros are as good a padding as any. So small cases are drawn
from a normal distribution instead, where the model's results on that are finite (logarithms and roots keep what they are given).

What a `TensorSpec` cannot say is refused: inputs that other functions made of what was drawn. Buffers of a model (masks, tables) are
constants of the reference; running statistics, which decide nothing in training, are not kept. One liberty is taken and noted: a random
scalar that scales an input counts as 1.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from evo.errors import TaskError
from evo.suites.recorded_inputs import Recorder
from evo.syntax import expression_tree, module_tree
from evo.tasks.base import Argument, Case, Task, TensorSpec, Tolerance

ENTRY = "forward"
"""What every kernel module of such a task defines: a function of the inputs and then the model's parameters."""

Constants = Mapping[str, object]
"""Names of a problem file's constants with other values; empty for the problem as it is."""


@dataclass(frozen=True)
class Setting:
    """A problem under some constants: its case, and its model with plain parameters on the CPU."""

    case: Case
    model: torch.nn.Module
    inputs: int


@dataclass(frozen=True)
class Problem:
    """One problem file.

    Attributes:
        number: In its level.
        level: Of the suite.
        path: Of the file.
        training: The problem as it is.
        small: The same with smaller constants, and inputs of both signs where the model takes them.
        notes: Liberties that were taken.
    """

    number: int
    level: int
    path: Path
    training: Setting
    small: tuple[Setting, ...]
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Task name, e.g. ``kernelbench_1_23``."""
        return f"kernelbench_{self.level}_{self.number}"

    def reference(self) -> Callable[..., Any]:
        """The model of whichever setting has the shapes it is called with, as a function of inputs and parameters."""
        calls = {shapes_of(setting.case.arguments): ModelCall(setting.model) for setting in (*self.small, self.training)}
        return lambda *arguments: calls[shapes_of(arguments)](*arguments)


class ModelCall:
    """A model as a function of its inputs and then its parameters.

    Args:
        model: Its parameters need not hold values.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.names = [name for name, _ in model.named_parameters()]
        self._buffers: dict[tuple[torch.device, bool], dict[str, torch.Tensor]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """What the model gives; buffers are where, and in float64 if, the parameters and inputs are."""
        inputs, parameters = self.split(arguments)
        state = {**self._constants(arguments), **dict(zip(self.names, parameters, strict=True))}
        return torch.func.functional_call(self.model, state, inputs)

    def bound(self, arguments: Sequence[Any]) -> Callable[..., Any]:
        """The model as its user calls it, on inputs alone: with the parameters among some arguments as its own. It stays so."""
        _, parameters = self.split(arguments)
        self.model.load_state_dict(dict(zip(self.names, parameters, strict=True)), strict=False, assign=True)
        for name, item in self._constants(arguments).items():
            owner, _, short = name.rpartition(".")
            self.model.get_submodule(owner).register_buffer(short, item)
        return self.model.requires_grad_(False)

    def split(self, arguments: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Inputs and parameters."""
        place = len(arguments) - len(self.names)
        return tuple(arguments[:place]), tuple(arguments[place:])

    def _constants(self, arguments: Sequence[Any]) -> dict[str, torch.Tensor]:
        first = next((item for item in arguments if isinstance(item, torch.Tensor)), None)
        if first is None:
            return {}
        wide = any(isinstance(item, torch.Tensor) and item.dtype == torch.float64 for item in arguments)
        key = first.device, wide
        if key not in self._buffers:
            self._buffers[key] = {
                name: item.to(first.device, torch.float64 if wide and item.is_floating_point() else item.dtype)
                for name, item in self.model.named_buffers()
            }
        return self._buffers[key]


def find_problem(root: Path, level: int, number: int) -> Path:
    """The file of a problem in a checkout.

    Raises:
        TaskError: No such file, or several.
    """
    found = sorted((root / "KernelBench" / f"level{level}").glob(f"{number}_*.py"))
    if len(found) != 1:
        action = "give the root of a checkout of KernelBench, which holds KernelBench/level1"
        raise TaskError(f"{root}: problem {number} of level {level}", given=f"{len(found)} files", action=action)
    return found[0]


def read_problem(
    path: Path, small: Sequence[Constants], *, as_it_is: Problem | None = None, elements: int | None = None
) -> Problem:
    """Reads a problem file.

    Args:
        path: ``…/level1/23_Softmax.py``.
        small: Constants of the small cases.
        as_it_is: The same file, read before, perhaps without small cases: it is not made in full size again.
        elements: That a small case may have at most.

    Raises:
        TaskError: The file, its inputs or its model cannot be used; says why.
    """
    notes: list[str] = [] if as_it_is is None else list(as_it_is.notes)
    training = _setting(path, {}, notes, signed=False) if as_it_is is None else as_it_is.training
    smaller = [_setting(path, constants, notes, signed=True, elements=elements) for constants in small]
    number = int(path.name.split("_")[0])
    level = int("".join(filter(str.isdigit, path.parent.name)) or 0)
    return Problem(number, level, path, training, tuple(smaller), tuple(dict.fromkeys(notes)))


def problem_task(path: Path, small: Sequence[Constants], starts: Sequence[str]) -> Task:
    """The task of a problem file.

    Args:
        path, small: See `read_problem`.
        starts: Source of starting kernels, which define `ENTRY`.
    """
    problem = read_problem(path, small)
    title = path.stem.partition("_")[2].replace("_", " ").strip()
    return Task(
        name=problem.name,
        description=f"{title} of KernelBench, level {problem.level}, number {problem.number}, in the dtypes of its inputs.",
        entry=ENTRY,
        reference=problem.reference(),
        training_cases=(problem.training.case,),
        held_out_cases=(),
        small_cases=tuple(setting.case for setting in problem.small),
        starting_kernels=tuple(starts),
        tolerance=Tolerance(),
        kind="kernelbench",
    )


def task_file(folder: Path, path: Path, small: Sequence[Constants], starts: Sequence[str]) -> Path:
    """Writes a task file for a problem, which `evo.tasks.loading.load_task`, and so every process of an evaluator, can read."""
    text = f'''
        """Problem {path.name} of KernelBench as a task."""

        from pathlib import Path

        from evo.suites.kernelbench_problems import problem_task

        TASK = problem_task(Path({str(path.resolve())!r}), {[dict(item) for item in small]!r}, {list(starts)!r})
        '''
    file = folder / f"{path.stem}.py"
    file.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
    return file


def _setting(path: Path, constants: Constants, notes: list[str], *, signed: bool, elements: int | None = None) -> Setting:
    module = run_problem(path, constants)
    try:
        with FakeTensorMode(), Recorder() as recorder:
            given = module["get_inputs"]()
        arguments = [recorder.argument(item, f"{path.name}: input {position}") for position, item in enumerate(given)]
        model = make_model(module)
        taken = sum(item.numel for item in arguments if isinstance(item, TensorSpec)) + sum(map(torch.numel, model.parameters()))
        if elements is not None and taken > elements:
            raise TaskError(str(path), given="no constants by which its inputs become small")
        if signed:
            arguments = _signed(model, arguments)
        inputs, name = len(arguments), _named(arguments)
        arguments += [_parameter(parameter) for parameter in model.parameters()]
        moved, flops = _work(model, arguments)
    except TaskError:
        raise
    except Exception as error:
        action = "get_inputs, Model and its forward must run"
        raise TaskError(str(path), given=f"{type(error).__name__}: {error}", action=action) from error
    notes.extend(recorder.notes)
    moved += sum(item.nbytes for item in arguments if isinstance(item, TensorSpec))
    return Setting(Case(name, tuple(arguments), moved, flops), model.requires_grad_(False), inputs)


@dataclass(frozen=True)
class Constant:
    """Where a constant of a module is assigned: alone, with others of the same value, or as one of several of a tuple."""

    node: ast.Assign
    place: int | None = None

    @property
    def value(self) -> ast.expr:
        """The expression."""
        assert self.place is None or isinstance(self.node.value, ast.Tuple)
        return self.node.value if self.place is None else self.node.value.elts[self.place]  # type: ignore[attr-defined]

    def give(self, value: object) -> None:
        """Assigns another value."""
        made = ast.copy_location(expression_tree(repr(value)), self.value)
        if self.place is None:
            self.node.value = made
        else:
            self.node.value.elts[self.place] = made  # type: ignore[attr-defined]


def constants_of(tree: ast.Module) -> dict[str, Constant]:
    """What a module assigns to plain names at its top level."""
    found: dict[str, Constant] = {}
    for node in (node for node in tree.body if isinstance(node, ast.Assign)):
        for target in node.targets:
            if isinstance(target, ast.Name):
                found[target.id] = Constant(node)
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                names = [(item.id, place) for place, item in enumerate(target.elts) if isinstance(item, ast.Name)]
                found |= {name: Constant(node, place) for name, place in names}
    return found


def make_model(module: Mapping[str, Any]) -> torch.nn.Module:
    """The model of a problem, initialised as from the seed 0; running statistics are not kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: torch.nn.Module = module["Model"](*module["get_init_inputs"]())
    for part in model.modules():
        if part.training and isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.track_running_stats:
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
    return model


def run_problem(path: Path, constants: Constants) -> dict[str, Any]:
    """The names a problem file defines, some of its constants replaced."""
    try:
        tree = module_tree(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise TaskError(
            str(path), given=f"{type(error).__name__}: {error}", action="give a problem file of KernelBench"
        ) from error
    places = constants_of(tree)
    for name, value in constants.items():
        if name not in places:
            raise TaskError(f"{path}: constant {name}", given="no such constant", allowed=", ".join(places))
        places[name].give(value)
    names: dict[str, Any] = {"__name__": "kernelbench_problem"}
    exec(compile(ast.fix_missing_locations(tree), str(path), "exec"), names)
    missing = [name for name in ("Model", "get_inputs", "get_init_inputs") if name not in names]
    if missing:
        raise TaskError(str(path), given=f"no {', '.join(missing)}", action="give a problem file of KernelBench")
    return names


def _signed(model: torch.nn.Module, arguments: Sequence[Argument]) -> list[Argument]:
    """The inputs with normal distributions in place of [0, 1), if the model's results on those are finite; else as they were."""
    widened = [
        replace(item, distribution="normal", scale=1.0) if isinstance(item, TensorSpec) and _is_unit(item) else item
        for item in arguments
    ]
    generator = torch.Generator().manual_seed(0)
    given: list[Any] = []
    for item in widened:
        if not isinstance(item, TensorSpec):
            given.append(item)
        elif item.distribution == "normal":
            given.append(torch.randn(item.shape, generator=generator, dtype=getattr(torch, item.dtype)))
        else:
            return list(arguments)  # labels and the like go together with what they label
    with torch.no_grad():
        results = _flat(model(*given))
        return widened if all(bool(result.isfinite().all()) for result in results) else list(arguments)


def _is_unit(spec: TensorSpec) -> bool:
    return spec.distribution == "uniform" and (spec.low, spec.high) == (0.0, 1.0) and spec.dtype.startswith(("float", "bfloat"))


def _parameter(parameter: torch.Tensor) -> TensorSpec:
    """Uniform over the range of the initial values; around a constant where they are all equal."""
    values = parameter.detach()
    low, high = float(values.min()), float(values.max())
    if low == high:
        low, high = low - 0.5, high + 0.5
    return TensorSpec(tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."), "uniform", low=low, high=high)


def _work(model: torch.nn.Module, arguments: Sequence[Argument]) -> tuple[int, int]:
    """Bytes of the model's outputs, and its floating-point operations (of products; else one per element), from a run without data.

    Args:
        model: The model.
        arguments: Inputs and parameters.
    """
    call = ModelCall(model)
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        given = [
            torch.empty_strided(item.shape, item.element_strides, dtype=getattr(torch, item.dtype))
            if isinstance(item, TensorSpec)
            else item
            for item in arguments
        ]
        with FlopCounterMode(display=False) as counter:
            outputs = list(_flat(call(*given)))
    inputs, _ = call.split(arguments)
    elements = sum(item.numel for item in inputs if isinstance(item, TensorSpec))
    return sum(item.numel() * item.element_size() for item in outputs), max(int(counter.get_total_flops()), elements)


def _flat(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _flat(item)


def shapes_of(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """What tells the cases of a problem apart."""
    return tuple(tuple(item.shape) if isinstance(item, TensorSpec | torch.Tensor) else item for item in arguments)


def _named(arguments: Sequence[Argument]) -> str:
    sizes = ["x".join(map(str, item.shape)) or "scalar" for item in arguments if isinstance(item, TensorSpec)]
    return "_".join(sizes) or "no_tensors"
