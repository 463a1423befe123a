"""The process that runs a task's reference and Inductor: ``python -m evo.seeding.child REQUEST ANSWER``, both files of JSON.

It is the user's own code that runs here, trusted as everywhere a task is loaded; the process has a folder of its own for caches and
ends when it has answered.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evo.errors import TaskError
from evo.seeding.graphs import NotCompilable, Traced, generate, line_of, trace
from evo.seeding.stand_in import stand_in, write_instead_of_importing
from evo.seeding.symbols import FakeArguments, Sizes, arguments_of, dense_order, kind_of, sizes_of
from evo.tasks.base import Argument, Case, Task, TensorSpec
from evo.tasks.loading import load_task
from evo.tracing.targets import target_named

MAX_FORMS = 6
"""A module with more would be a table of cases."""
_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''\n(.*?)\n?''', device_str='\w+'\)", re.DOTALL)


def main(request_path: str, answer_path: str) -> None:
    """Answers one request."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    try:
        answer = seed(request)
    except (NotCompilable, TaskError) as error:
        answer = {"failure": " ".join(str(error).split())}
    except (Exception, SystemExit) as error:  # noqa: BLE001  whatever Inductor of this version fails with is the answer
        answer = {"failure": f"Inductor cannot be driven: {line_of(error)}"}
    Path(answer_path).write_text(json.dumps(answer), encoding="utf-8")


def seed(request: dict[str, Any]) -> dict[str, Any]:
    """What Inductor makes of a task's reference.

    Args:
        request: ``task`` (path of its file), ``target`` and ``products`` (see `evo.seeding.decompositions`).

    Returns:
        ``forms`` in the order in which cases are told apart, ``library`` (source of the functions that kernels of Inductor call) and
        ``names`` of the reference's parameters.

    Raises:
        NotCompilable: Nothing that could be a seed.
        TaskError: The task cannot be loaded.
    """
    return seed_of(load_task(request["task"], check=False), request["target"], request["products"])


def seed_of(task: Task, target: str, products: str) -> dict[str, Any]:
    """The same for a task that is loaded; changes what this process takes for its device until it ends."""
    if task.backward:
        raise NotCompilable("the task has a backward phase")
    if task.oracle == "stochastic":
        raise NotCompilable("its outputs are random, and Inductor draws by rules of its own")
    stand_in(target_named(target))
    write_instead_of_importing()
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    from torch._inductor.runtime import triton_helpers

    return {
        "forms": _forms(task, products),
        "library": inspect.getsource(triton_helpers),
        "names": _names(task),
    }


def _forms(task: Task, products: str) -> list[dict[str, Any]]:
    left = [*task.training_cases, *task.small_cases, *task.held_out_cases]
    forms: list[dict[str, Any]] = []
    while left:
        if len(forms) == MAX_FORMS:
            raise NotCompilable(f"its cases need more than {MAX_FORMS} forms, as {left[0].name} does")
        kind = kind_of(task, left[0])
        alike = [case for case in left if kind_of(task, case) == kind]
        form, served = _form(task, alike, products)
        forms.append(form)
        left = [case for case in left if case not in served]
    return forms


def _form(task: Task, cases: list[Case], products: str) -> tuple[dict[str, Any], list[Case]]:
    """The code for the first case and as many of the others as it serves."""
    while True:
        sizes = sizes_of(task, cases)
        fakes = FakeArguments(task, cases[0], sizes)
        try:
            traced, code = _written(task, fakes, products)
        except NotCompilable:
            if not sizes.symbols:
                raise
            cases = cases[:1]  # whose sizes are constants then, of which nothing need be assumed
            continue
        guards = fakes.guards()
        served = [case for case in cases if _holds(guards, sizes.of(arguments_of(task, case)))]
        if len(served) == len(cases):
            return _described(task, served, sizes, fakes, traced, code, guards), served
        if len(cases) == 1:
            raise NotCompilable(f"what was assumed of sizes does not hold in case {cases[0].name} itself: {'; '.join(guards)}")
        # With fewer cases there are fewer symbols, and the code is plainer.
        cases = served if cases[0] in served else cases[:1]


def _written(task: Task, fakes: FakeArguments, products: str) -> tuple[Traced, str]:
    """Where a product has no template, a sum takes its place."""
    try:
        traced = trace(task, fakes, products=products)
        return traced, generate(traced, fakes, products=products)
    except NotCompilable:
        if products != "template":
            raise
    traced = trace(task, fakes, products="plain")
    return traced, generate(traced, fakes, products="plain")


def _holds(guards: Sequence[str], values: dict[str, int]) -> bool:
    import math

    names = {"math": math, "torch": torch, "Mod": lambda a, b: a % b, "Eq": lambda a, b: a == b, "Ne": lambda a, b: a != b}
    return all(bool(eval(guard, {**names, **values})) for guard in guards)


def _described(
    task: Task, cases: Sequence[Case], sizes: Sizes, fakes: FakeArguments, traced: Traced, code: str, guards: Sequence[str]
) -> dict[str, Any]:
    return {
        "code": code,
        "configurations": {name: _configurations(name, text) for name, text in _KERNEL.findall(code)},
        "cases": [case.name for case in cases],
        "symbols": {name: list(place) for name, place in sizes.symbols.items()},
        "renamed": dict(fakes.names),
        "arguments": [_argument(task, cases, index, sizes) for index in range(len(fakes.values))],
        "layouts": _layouts(arguments_of(task, cases[0])),
        "positions": traced.positions,
        "guards": list(guards),
        "outputs": traced.outputs,
    }


def _argument(task: Task, cases: Sequence[Case], index: int, sizes: Sizes) -> dict[str, Any]:
    item = arguments_of(task, cases[0])[index]
    if not isinstance(item, TensorSpec):
        return {"value": item}
    return {"dtype": item.dtype, "shape": [sizes.values[index, dim] for dim in range(len(item.shape))]}


def _layouts(arguments: Sequence[Argument]) -> list[dict[str, Any]]:
    """Tests of a tensor x's layout by position of the argument."""
    found = []
    for position, item in enumerate(arguments):
        if not isinstance(item, TensorSpec) or not item.shape:
            continue
        order = dense_order(item)
        if order is None:
            test = f"x.stride() == {item.element_strides}"
        elif order == tuple(range(len(order))):
            test = "x.is_contiguous()"
        else:
            test = f"x.permute({order}).is_contiguous()"
        found.append({"position": position, "test": test})
    return found


def _names(task: Task) -> list[str]:
    """Of the arguments, as the reference calls them."""
    count = len(task.training_cases[0].arguments)
    first = 1 if task.form == "module" else 0
    parameters = list(inspect.signature(task.reference).parameters.values())[first:]
    names = [item.name for item in parameters if item.kind in (item.POSITIONAL_ONLY, item.POSITIONAL_OR_KEYWORD)]
    return [*names, *(f"argument{index}" for index in range(len(names), count))][:count]


def _configurations(name: str, text: str) -> list[dict[str, Any]]:
    """Those that Inductor would choose from, best guess first: of the heuristics that decorate a kernel."""
    text = "\n".join(line for line in text.splitlines() if "set_driver_to_gpu" not in line)
    path = Path(f"{name}_{abs(hash(text)):x}.py").resolve()
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: types.ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    autotuner = getattr(module, name)
    return [{**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages} for config in autotuner.configs]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
