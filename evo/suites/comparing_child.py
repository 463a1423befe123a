"""The process that times sides of a problem: ``python -m evo.suites.comparing_child REQUEST ANSWER PREPARED``, the first two files of JSON.

It makes the third file when it could begin, begins at a byte on its standard input, and ends when that ends.

The module of the best variant runs here as Python, as its users run it: it passed verification, and its verdict comes from there.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from evo.descendants import end_with_caller
from evo.suites.deadlines import ended_after
from evo.tasks.base import Case, Task
from evo.tasks.inputs import make_inputs
from evo.tasks.loading import load_task

MAX_SETS = 16
MAX_SET_BYTES = 16 << 30
RUN_S = 2e-3
"""A side is called so often in a round that it takes about this long."""
MAX_CALLS = 50
Call = Callable[..., Any]


@dataclass(frozen=True)
class Side:
    """What is called, and sets of arguments."""

    call: Call
    sets: Sequence[tuple[Any, ...]]


def main(request_path: str, answer_path: str, prepared_path: str) -> None:
    """Answers one request; after every case, what there is by then."""
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    task = load_task(request["task"], check=False)
    Path(prepared_path).touch()
    if not os.read(0, 1):
        return
    end_with_caller()
    device = request["device"]
    failed: dict[str, str] = {}
    cases: list[dict[str, Any]] = []
    for case in task.training_cases:
        sides = _sides(task, case, request, failed)
        found = measured(sides, case.name, request["rounds"], device, failed, request["side_s"])
        if found is not None:
            cases.append(found)
        answer = {"cases": cases, "failed": failed}
        if not cases and "best" in failed:
            answer = {"failure": f"the best variant does not run: {failed['best']}"}
        part = Path(f"{answer_path}.part")
        part.write_text(json.dumps(answer), encoding="utf-8")
        part.replace(answer_path)  # a process that is ended leaves a whole answer
        torch.compiler.reset()
        if device == "cuda":
            torch.cuda.empty_cache()


def _sides(task: Task, case: Case, request: Mapping[str, Any], failed: Mapping[str, str]) -> dict[str, Side]:
    sets = _inputs(task, case, request["device"])
    reference: Any = task.reference
    theirs = sets
    if hasattr(reference, "bound"):  # a model: it has its parameters, and is called with its inputs alone
        split, bound = reference.split, reference.bound
        weights = split(sets[0])[1]
        theirs = [split(arguments)[0] for arguments in sets]
        sets = [(*inputs, *weights) for inputs in theirs]
        reference = bound(sets[0])
    elif hasattr(reference, "loaded"):  # a kernel: what its user calls, not what chooses between devices for a judge
        reference = reference.loaded()
    best = _module_entry(request["source"], task.entry, request["configurations"].get(case.name, {}))
    sides = {"best": Side(best, sets)}
    for name in (name for name in request["sides"] if name not in failed):
        mode = request["modes"].get(name, "")
        call: Call = torch.compile(reference, dynamic=False, mode=mode) if mode else reference
        sides[name] = Side(call, theirs)
    return sides


def _module_entry(source: str, entry: str, configuration: Mapping[str, Any]) -> Call:
    """The entry of a module of its own, with its CONFIG set."""
    path = Path(f"kernel_{random.getrandbits(48)}.py").resolve()
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    if configuration:
        module.CONFIG.update(configuration)
    found: Call = getattr(module, entry)
    return found


def measured(
    sides: Mapping[str, Side], case: str, rounds: int, device: str, failed: dict[str, str], side_s: float
) -> dict[str, Any] | None:
    """Times per call of all sides that run within `side_s` seconds; those that do not are put into `failed`.

    Returns:
        None where the best variant does not run.
    """
    with torch.no_grad():
        counts: dict[str, int] = {}
        for name, side in sides.items():
            try:
                with ended_after(side_s, TimeoutError(f"it was not compiled and called within {side_s:g} s")):
                    for arguments in side.sets:
                        side.call(*arguments)
                    _synchronised(device)
                counts[name] = max(1, min(MAX_CALLS, round(RUN_S / max(_seconds(side, 3, device), 1e-7))))
            except Exception as error:  # noqa: BLE001  named in the table; the other sides go on
                failed[name] = " ".join(f"{type(error).__name__}: {error}".split())[:400]
        if "best" not in counts:
            return None
        order, times = random.Random(case), {name: list[float]() for name in counts}
        for _ in range(rounds):
            names = list(counts)
            order.shuffle(names)
            for name in names:
                times[name].append(1e6 * _seconds(sides[name], counts[name], device))
    return {
        "case": case,
        "us": {name: statistics.median(values) for name, values in times.items()},
        "ratios": {
            name: [math.log(a / b) for a, b in zip(values, times["best"], strict=True)]
            for name, values in times.items()
            if name != "best"
        },
    }


def _inputs(task: Task, case: Case, device: str) -> list[tuple[Any, ...]]:
    """Sets of inputs that together exceed twice the L2 cache, so that each is cold."""
    l2 = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 0
    count = max(1, min(MAX_SETS, -(-2 * l2 // case.bytes), MAX_SET_BYTES // case.bytes))
    return [make_inputs(task, case, 1000 + number, device).arguments for number in range(count)]


def _seconds(side: Side, calls: int, device: str) -> float:
    """Wall seconds per call of back-to-back calls, synchronised at both ends."""
    _synchronised(device)
    begun = time.perf_counter()
    for number in range(calls):
        side.call(*side.sets[number % len(side.sets)])
    _synchronised(device)
    return (time.perf_counter() - begun) / calls


def _synchronised(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(*sys.argv[1:4])
