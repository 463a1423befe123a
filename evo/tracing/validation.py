"""Turns the JSON of a sandbox into a LaunchPlan, checking everything a hostile process could have put there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from evo.errors import PlanError
from evo.tracing import plan as p
from evo.tracing.device_code import code_problem
from evo.tracing.effects import storages_of

_RANGES = {"num_warps": (1, 64), "num_ctas": (1, 16), "num_stages": (0, 64), "maxnreg": (1, 255)}
_NAME = re.compile(r"[A-Za-z_$][\w$.]{0,255}")
_TYPE = re.compile(r"(\*k?[a-z0-9]+|constexpr|nvTmaDesc|tensordesc(_im2col)?<[\w\[\], =]+>|[a-z]+\d+(e\d+(b\d+)?(nv|fnuz)?)?)")
_OPERATOR = re.compile(r"[a-z_0-9]+\.[A-Za-z_0-9]+")
_MAX_NESTING = 32
_CONSTANTS = ("strided", "contiguous_format", "preserve_format", "channels_last")
_TARGET = re.compile(r"(cuda:\d{2,3}|hip:gfx[0-9a-f]{3,4})")


def parse_plan(data: Any) -> p.LaunchPlan:
    """See `LaunchPlan.from_json`."""
    try:
        return _parse(data)
    except PlanError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise PlanError(f"malformed plan: {type(error).__name__}: {error}") from error


def _parse(data: Any) -> p.LaunchPlan:
    _require(isinstance(data, dict) and data.get("version") == p.PLAN_VERSION, f"plan version {p.PLAN_VERSION} expected")
    _require(bool(_TARGET.fullmatch(str(data["target"]))), f"target {data['target']!r}")
    storages = tuple(_integer(size, 0, p.MAX_STORAGE_BYTES, "storage size") for size in _items(data["storages"], p.MAX_VALUES))
    _require(sum(storages) <= p.MAX_TOTAL_BYTES, f"storages of {sum(storages)} bytes in all")
    values = tuple(_value(item, storages) for item in _items(data["values"], p.MAX_VALUES))
    kernels = tuple(_kernel(item) for item in _items(data["kernels"], p.MAX_KERNELS))
    sources = tuple(_source(item, len(values)) for item in _items(data["sources"], 1024))
    supplied = [values[source.value].storage for source in sources]
    _require(set(data["steps"]) <= set(p.PHASES), f"phases {sorted(data['steps'])}")
    steps = {phase: tuple(map(p.step_from_json, _items(data["steps"].get(phase, []), p.MAX_STEPS))) for phase in p.PHASES}
    plan = p.LaunchPlan(
        triton=str(data["triton"])[:64],
        target=data["target"],
        storages=storages,
        values=values,
        sources=sources,
        kernels=kernels,
        steps=steps,
        outputs=data["outputs"],
        gradients=tuple(
            None if item is None else _integer(item, 0, len(values) - 1, "gradient") for item in _items(data["gradients"], 1024)
        ),
        choices={str(key): _integer(item, 1, 10_000, "choices") for key, item in dict(data["choices"]).items()},
    )
    live = set(supplied)
    for phase in p.PHASES:
        for step in steps[phase]:
            _check_step(step, plan, live)
    _check_prepare(plan)
    _check_outputs(plan.outputs)
    for reference in _references(plan.outputs):
        _require(values[_integer(reference, 0, len(values) - 1, "output")].storage in live, "an output nobody made")
    _check_gradients(plan, live)
    return plan


def _check_prepare(plan: p.LaunchPlan) -> None:
    inputs = {plan.values[source.value].storage for source in plan.sources if source.kind != "parameter"}
    for step in plan.steps["prepare"]:
        _require(not inputs.intersection(storages_of(step, plan)), "the prepare phase touches a call's inputs")


def _check_step(step: p.Step, plan: p.LaunchPlan, live: set[int]) -> None:
    if isinstance(step, p.Allocate):
        _integer(step.storage, 0, len(plan.storages) - 1, "storage")
        _require(step.storage not in live, f"storage {step.storage} is made twice")
        live.add(step.storage)
    elif isinstance(step, p.Fill):
        _check_value(step.value, plan, live)
        _require(_is_number(step.scalar), "fill with what is no number of 64 bits")
    elif isinstance(step, p.Copy):
        _check_value(step.target, plan, live)
        _check_value(step.source, plan, live)
    elif isinstance(step, p.Operator):
        _require(bool(_OPERATOR.fullmatch(step.name)) and step.overload.isidentifier(), f"operator {step.name}.{step.overload}")
        _require(step.name not in p.EMPTY_OPERATORS, f"{step.name}: undefined memory is allocated, not computed")
        for reference in [*_references(list(step.arguments)), *_references(dict(step.keywords))]:
            _check_value(reference, plan, live)
        _require(all(isinstance(key, str) and key.isidentifier() for key in step.keywords), "an operator's keywords")
        for item in [*step.arguments, *step.keywords.values()]:
            _check_operand(item)
        for result in step.results:
            if result is not None:
                live.add(plan.values[_integer(result, 0, len(plan.values) - 1, "result")].storage)
    else:
        _check_launch(step, plan, live)


def _check_operand(item: Any) -> None:
    """An argument of a torch operator: plain, or one of the forms that `Operator` names."""
    if isinstance(item, dict):
        key, value = next(iter(item.items()), ("", None))
        known = {"dtype": tuple(p.VALUE_DTYPES), "device": (True,), "constant": _CONSTANTS}.get(key, ())
        _require(len(item) == 1 and (key == "value" or value in known), f"an operator's argument {item!r}")
    elif isinstance(item, list | tuple):
        for inner in item:
            _check_operand(inner)


def _check_outputs(node: Any) -> None:
    """What the entry returned, in the forms that `LaunchPlan.outputs` names."""
    if isinstance(node, dict) and set(node) != {"value"}:
        _require(set(node) != {"list"} or isinstance(node["list"], list), "an output that is no list")
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list | tuple) else ():
        _check_outputs(inner)


def _check_gradients(plan: p.LaunchPlan, live: set[int]) -> None:
    """Gradients are supplied for outputs, for each at most once, and look like them; those that come out were made."""
    made = all(plan.values[index].storage in live for index in plan.gradients if index is not None)
    _require(made, "a gradient nobody made")
    outputs = list(_references(plan.outputs))
    places = [source.key for source in plan.sources if source.kind == "gradient"]
    _require(len(set(places)) == len(places), "two gradients of one output")
    for source in plan.sources:
        if source.kind == "gradient":
            output = plan.values[outputs[_integer(source.key, 0, len(outputs) - 1, "gradient of output")]]
            value = plan.values[source.value]
            _require((value.dtype, value.shape) == (output.dtype, output.shape), f"the gradient of output {source.key}")


def _check_launch(step: p.Launch, plan: p.LaunchPlan, live: set[int]) -> None:
    kernel = plan.kernels[_integer(step.kernel, 0, len(plan.kernels) - 1, "kernel")]
    _require(len(step.grid) == 3, f"grid {step.grid}")
    for size, largest in zip(step.grid, p.MAX_GRID, strict=True):
        _integer(size, 0, largest, f"grid {step.grid}")
    _require(len(step.arguments) == len(kernel.signature), f"{len(step.arguments)} arguments for {kernel.name}")
    for (name, kind), argument in zip(kernel.signature, step.arguments, strict=True):
        _check_argument(f"{kernel.name}({name})", kind, argument, plan, live)


def _check_argument(where: str, kind: Any, argument: Any, plan: p.LaunchPlan, live: set[int]) -> None:
    if isinstance(kind, tuple):
        _require(isinstance(argument, list | tuple) and len(argument) == len(kind), f"{where}: a tuple of {len(kind)}")
        for index, (inner, item) in enumerate(zip(kind, argument, strict=True)):
            _check_argument(f"{where}[{index}]", inner, item, plan, live)
    elif kind == "constexpr":
        _require(argument is None, f"{where}: constexpr")
    elif kind.startswith("*"):
        _require(
            isinstance(argument, dict) and set(argument) == {"value"}, f"{where}: a pointer needs a value, given {argument!r}"
        )
        _check_value(argument["value"], plan, live)
    elif kind.startswith("tensordesc"):
        descriptor = argument["descriptor"]
        _check_value(descriptor["value"], plan, live)
        _check_descriptor(where, descriptor, plan)
    else:
        _require(_is_number(argument), f"{where}: {kind} needs a number of 64 bits")
        if kind.startswith(("i", "u")):
            _require(isinstance(argument, int), f"{where}: {kind} needs an integer, given {argument!r}")


def _is_number(item: Any) -> bool:
    return isinstance(item, float) or (isinstance(item, int) and -(2**63) <= item < 2**64)


def _check_descriptor(where: str, descriptor: dict[str, Any], plan: p.LaunchPlan) -> None:
    _require(set(descriptor) == {"value", "shape", "strides", "block", "padding", "tf32"}, f"{where}: descriptor fields")
    shape, strides = descriptor["shape"], descriptor["strides"]
    _require(1 <= len(shape) <= 5 and len(shape) == len(strides) == len(descriptor["block"]), f"{where}: descriptor rank")
    base = plan.values[descriptor["value"]]
    for number in [*shape, *strides, *descriptor["block"]]:
        _integer(number, 0, 2**40, f"{where}: descriptor")
    view = p.Value(base.storage, base.dtype, tuple(shape), tuple(strides), base.offset)
    _require(view.extent <= plan.storages[base.storage], f"{where}: the descriptor reaches past its storage")
    _require(descriptor["padding"] in ("zero", "nan") and isinstance(descriptor["tf32"], bool), f"{where}: descriptor padding")


def _value(item: Any, storages: tuple[int, ...]) -> p.Value:
    storage = _integer(item["storage"], 0, len(storages) - 1, "storage")
    _require(item["dtype"] in p.VALUE_DTYPES, f"dtype {item['dtype']!r}")
    shape = tuple(_integer(size, 0, 2**40, "shape") for size in _items(item["shape"], 16))
    strides = tuple(_integer(step, 0, 2**40, "stride") for step in _items(item["strides"], 16))
    _require(len(shape) == len(strides), "shape and strides differ in length")
    value = p.Value(storage, item["dtype"], shape, strides, _integer(item["offset"], 0, 2**40, "offset"))
    _require(value.extent <= storages[storage], f"a value of {value.extent} bytes in a storage of {storages[storage]}")
    return value


def _kernel(item: Any) -> p.Kernel:
    _require(bool(_NAME.fullmatch(item["name"])), f"kernel name {item['name']!r}")
    _require(isinstance(item["ttir"], str) and len(item["ttir"].encode()) <= p.MAX_TTIR_BYTES, "TTIR too large")
    problem = code_problem(item["ttir"])
    if problem:
        raise PlanError(f"kernel {item['name']}: {problem}")
    signature = tuple((_checked_name(name), _kind(kind)) for name, kind in _items(item["signature"], 512))
    _require(len({name for name, _ in signature}) == len(signature), "two parameters of one name")
    options = dict(item["options"])
    for key, option in options.items():
        _require(key in p.OPTION_TYPES, f"compile option {key!r}; allowed: {', '.join(p.OPTION_TYPES)}")
        _require(isinstance(option, p.OPTION_TYPES[key]), f"compile option {key} = {option!r}")
        _require(bool in p.OPTION_TYPES[key] or not isinstance(option, bool), f"compile option {key} = {option!r}")
    for key, (least, most) in _RANGES.items():
        _require(
            options.get(key) is None or least <= options[key] <= most,
            f"compile option {key} = {options.get(key)}; allowed: {least} to {most}",
        )
    return p.Kernel(item["name"], item["ttir"], signature, options, _origin(item.get("origin") or {}))


def _origin(item: Any) -> dict[str, Any]:
    _require(isinstance(item, dict) and set(item) <= {"function", "constants"}, "a kernel's origin")
    constants = dict(item.get("constants", {}))
    _require(len(constants) <= 512 and all(map(_is_constant, constants.values())), "a kernel's constants")
    return {"function": _checked_name(item.get("function")), "constants": constants} if item else {}


def _is_constant(item: Any, depth: int = 0) -> bool:
    if isinstance(item, dict) and len(item) == 1 and depth <= _MAX_NESTING:
        ((kind, inner),) = item.items()
        if kind == "tuple":
            return isinstance(inner, list) and all(_is_constant(part, depth + 1) for part in inner)
        return kind in ("dtype", "function") and isinstance(inner, str)
    return item is None or isinstance(item, int | float | bool | str)


def _checked_name(name: Any) -> str:
    _require(isinstance(name, str) and name.isidentifier(), f"parameter name {name!r}")
    return str(name)


def _kind(kind: Any) -> Any:
    if isinstance(kind, list | tuple):
        return tuple(_kind(item) for item in _items(kind, 64))
    _require(isinstance(kind, str) and bool(_TYPE.fullmatch(kind)), f"argument type {kind!r}")
    return kind


def _source(item: Any, values: int) -> p.Source:
    _require(item["kind"] in ("argument", "parameter", "gradient"), f"source {item['kind']!r}")
    key = item["key"]
    _require(isinstance(key, int) or (isinstance(key, str) and key.isprintable()), "source key")  # it becomes text of a module
    return p.Source(item["kind"], key, _integer(item["value"], 0, values - 1, "source value"))


def _check_value(index: Any, plan: p.LaunchPlan, live: set[int]) -> None:
    value = plan.values[_integer(index, 0, len(plan.values) - 1, "value")]
    _require(value.storage in live, f"value {index} is used before its storage {value.storage} exists")


def _references(node: Any, depth: int = 0) -> Iterator[int]:
    _require(depth <= _MAX_NESTING, f"nested deeper than {_MAX_NESTING}")
    if isinstance(node, dict):
        if set(node) == {"value"}:
            yield node["value"]
        else:
            for item in node.values():
                yield from _references(item, depth + 1)
    elif isinstance(node, list | tuple):
        for item in node:
            yield from _references(item, depth + 1)
    else:
        _require(node is None or isinstance(node, int | float | bool | str), f"a {type(node).__name__} in a plan")


def _items(value: Any, limit: int) -> list[Any]:
    _require(isinstance(value, list | tuple) and len(value) <= limit, f"a list of at most {limit} expected")
    return list(value)


def _integer(value: Any, low: int, high: int, what: str) -> int:
    _require(
        isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
        f"{what} {value!r} is not in {low}…{high}",
    )
    return int(value)


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise PlanError(f"the launch plan is not valid: {text}")
