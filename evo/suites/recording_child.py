"""Runs the scripts of a suite's file in a sandbox and notes which calls they make; what the sandboxed child does.

The scripts' tensors are real ones on the CPU that claim to be on a GPU, so that they may look at values; kernels are not launched, and what
they would have written stays zero. Of large tensors only the beginning has values. Each call of something the kernel part defines
becomes an entry: a function, in source form, of the call's tensors and numbers, and a specification of those.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import triton
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelInterface

from evo.suites.claims import Claims, tensors_of
from evo.suites.deadlines import ended_after
from evo.suites.entries import LARGE, Made, Text, Unread, specification
from evo.suites.pytest_stand_in import pretended_pytest, run_tests
from evo.suites.stand_ins import pretended_modules
from evo.tracing.facade import fake_cuda
from evo.tracing.recorder import Recording
from evo.tracing.targets import TARGETS
from evo.tracing.trace_child import describe, load_module

MAX_CALLS = 64
"""Different calls per file that are kept."""
MAX_INPUT_BYTES = 4 << 30
"""Of one call of a measuring script; what is larger is left out."""
SCRIPT_S = 25.0
"""CPU seconds that a test, what makes inputs to measure with, and what is measured may take each; calls until then are kept."""


class TookLong(BaseException):
    """A script is ended; no script catches this."""


def record(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the kernel part and the test.

    Args:
        request: ``source`` (kernel part), ``driver`` (the test part), ``perf`` (a script of TritonBench's that measures) with the ``name``
            of the module that it imports, ``launching`` (whether only calls that launch kernels are kept), ``by_pytest`` (whether
            the test part is written for pytest), ``target``.

    Returns:
        ``module``, ``driver`` and ``perf``: what ended each before its end, empty if nothing did; ``calls``, see `Calls.note`.
    """
    torch.manual_seed(0)
    answer: dict[str, Any] = {"module": "", "driver": "", "perf": "", "calls": []}
    calls = Calls(launching=request["launching"])
    with fake_cuda(Recording(request["target"], triton.__version__, 0), TARGETS[request["target"]]), Claims(calls.differentiate):
        _quiet(calls)
        try:
            with pretended_pytest() if request["by_pytest"] else contextlib.nullcontext():
                module = load_module(request["source"], {})
        except BaseException as error:  # noqa: BLE001  whatever the file's code raises is noted
            return {**answer, "module": describe(error)["message"]}
        names = {
            name: Spy(item, name, calls) if _is_of(module, item) and not name.startswith("__") else item
            for name, item in vars(module).items()
        }
        for script, run in (("driver", _drive), ("perf", _measure)):
            calls.script = script
            try:
                if request[script]:
                    run(dict(names), request, calls)
            except BaseException as error:  # noqa: BLE001  as above
                answer[script] = describe(error)["message"]
    kept = [call for call in calls.noted if call["launches"] or call["unread"] or call["error"] or not request["launching"]]
    return {**answer, "calls": kept}


def _limited() -> AbstractContextManager[None]:
    """Of what is done meanwhile."""
    return ended_after(SCRIPT_S, TookLong(f"it takes more than {SCRIPT_S:g} s here"), of_cpu=True)


def _drive(names: dict[str, Any], request: dict[str, Any], calls: Calls) -> None:
    """Runs the test part among the module's names, those it defines wrapped."""
    driver = request["driver"]
    path = Path("driver.py").resolve()
    path.write_text(driver)
    names |= {"__name__": "__main__", "__file__": str(path)}
    if request["by_pytest"]:
        names["__name__"] = "suite_tests"
        with pretended_pytest(), _limited():
            exec(compile(driver, str(path), "exec"), names)
            last = run_tests(names, lambda script: setattr(calls, "script", script))
        if last:
            raise RuntimeError(last)
        return
    with _limited():
        with pretended_modules(names, request["name"] or "suite_file"):
            exec(compile(driver, str(path), "exec"), names)
        if not calls.noted:
            for name, item in list(names.items()):
                if name.startswith("test") and isinstance(item, types.FunctionType):
                    item()


def _measure(names: dict[str, Any], request: dict[str, Any], calls: Calls) -> None:
    """Makes each call that a measuring script would time, once."""
    script: dict[str, Any] = {"__name__": "perf", "__file__": str(Path("perf.py").resolve())}
    with pretended_modules(names, request["name"]):
        exec(compile(request["perf"], script["__file__"], "exec"), script)
        made = script["performance_metrics"]()
    failures: list[BaseException] = []
    try:
        with _limited():
            made.get_input_tensors()
    except (Exception, TookLong) as error:  # noqa: BLE001  sizes that it made before are there
        failures.append(error)
    with _limited():
        while made.input_tensors:
            given = made.input_tensors.pop(0)
            if sum(item.numel() * item.element_size() for item in tensors_of(given)) > MAX_INPUT_BYTES:
                continue
            try:
                made.call_op(made.to_cuda(given))
            except Exception as error:  # noqa: BLE001  what it raises for one size says nothing of the others
                failures.append(error)
    if failures and (isinstance(failures[0], TookLong) or not any(call["script"] == "perf" for call in calls.noted)):
        raise failures[0]


def _is_of(module: types.ModuleType, item: Any) -> bool:
    """Whether the module made it: a kernel, function, class, or bound method of such a class."""
    owner = getattr(item, "__self__", item)
    return isinstance(item, KernelInterface) or (callable(item) and getattr(owner, "__module__", "") == module.__name__)


def _quiet(calls: Calls) -> None:
    """Launches nothing, in a process that is thrown away."""

    def launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        calls.launches += 1

    def tune(self: Autotuner, *args: Any, **kwargs: Any) -> None:
        calls.launches += 1
        self.best_config = self.configs[0]

    JITFunction.run = launch
    Autotuner.run = tune
    silent: dict[str, Any] = {"manual_seed": lambda seed: None, "manual_seed_all": lambda seed: None, "empty_cache": lambda: None}
    for name, answer in silent.items():
        setattr(torch.cuda, name, answer)


class Calls:
    """The calls so far.

    Attributes:
        launches: Kernels that would have been launched.
        script: Which script is at work: ``driver`` or ``perf``.
        noted: Of each different call: ``label`` (what is called), ``script`` (that made it), ``form``, ``text`` (source of the entry),
            ``arguments`` (specification or plain value each), ``parameters``, ``backward``, ``launches``, ``error`` (what it raised),
            ``odd`` (it gave what is no tensor, too), ``unread`` (why no entry says it).
        made: Instances of the module's classes by id, with what they were made from.
    """

    def __init__(self, *, launching: bool) -> None:
        self._launching = launching
        self.launches = 0
        self.script = "driver"
        self.noted: list[dict[str, Any]] = []
        self.made: Made = {}

    def note(self, label: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], instance: Any = None) -> dict[str, Any]:
        """Notes a call, once."""
        entry: dict[str, Any] = {"label": label, "form": "function", "text": "", "arguments": [], "parameters": {}}
        entry |= {"backward": False, "launches": 0, "error": "", "unread": "", "odd": False, "script": self.script}
        try:
            text = Text(self.made)
            if instance is None:
                entry["text"] = text.function(label, args, kwargs)
            else:
                entry |= self._of_module(text, instance, args, kwargs)
            entry["arguments"] = text.arguments
        except Unread as error:
            entry["unread"] = str(error)
        for other in self.noted:
            if _is_same(other, entry):
                return other
        if len(self.noted) < MAX_CALLS:
            self.noted.append(entry)
        return entry

    def needless(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call need not be made once it is noted: its script measures a function of torch on much data, which has no values."""
        return (
            not self._launching and self.script == "perf" and sum(item.numel() for item in tensors_of((*args, kwargs))) >= LARGE
        )

    def _of_module(self, text: Text, instance: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        _, name, given, named = self.made[id(instance)]
        if any(isinstance(item, torch.Tensor) for item in (*given, *named.values())):
            return {"text": text.function(text.call(name, given, named), args, kwargs)}
        parameters = {key: specification(item) for key, item in instance.state_dict().items()}
        return {"form": "module", "text": text.module(name, given, named, args, kwargs), "parameters": parameters}

    def differentiate(self) -> None:
        """Gradients are asked for: of the calls whose tensors require them."""
        for entry in self.noted:
            wanted = [item for item in entry["arguments"] if isinstance(item, dict) and item["requires_grad"]]
            entry["backward"] = entry["backward"] or bool(wanted)


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two calls are the same but for the values of their tensors."""
    plain = all(one[key] == other[key] for key in ("label", "text", "unread"))
    pairs = zip(
        [*one["arguments"], *one["parameters"].values()], [*other["arguments"], *other["parameters"].values()], strict=False
    )
    return plain and len(one["arguments"]) == len(other["arguments"]) and all(_layout(a) == _layout(b) for a, b in pairs)


def _layout(item: Any) -> Any:
    kept = ("shape", "dtype", "strides", "offset", "requires_grad")
    return [item[key] for key in kept] if isinstance(item, dict) else (type(item), item)


class Spy:
    """Stands for what a module defines: passes everything on and notes calls."""

    def __init__(self, item: Any, label: str, calls: Calls, instance: Any = None) -> None:
        self.item, self.label, self.calls, self.instance = item, label, calls, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Notes the call (of a class: what is made) and makes it."""
        given = tuple(map(_bare, args))
        named = {key: _bare(item) for key, item in kwargs.items()}
        if isinstance(self.item, type):
            made = self.item(*given, **named)
            self.calls.made[id(made)] = (made, self.label, given, named)
            return Spy(made, self.label, self.calls, made) if isinstance(made, torch.nn.Module) else made
        entry, before = self.calls.note(self.label, given, named, self.instance), self.calls.launches
        if self.calls.needless(given, named):
            return None
        try:
            result = self.item(*given, **named)
            entry["odd"] = entry["odd"] or _is_odd(result)
            return result
        except Exception as error:
            entry["error"] = entry["error"] or describe(error)["message"]
            raise
        finally:
            entry["launches"] = max(entry["launches"], self.calls.launches - before)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.item, name)
        if self.instance is not None and callable(found):
            return lambda *args, **kwargs: self if (made := found(*args, **kwargs)) is self.instance else made
        return Spy(found, f"{self.label}.{name}", self.calls) if callable(found) else found

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """A launch by the test itself."""

        def launch(*args: Any, **kwargs: Any) -> Any:
            meta = {**_first_choice(self.item), **dict(zip(self.item.arg_names, args, strict=False)), **kwargs}
            sizes = tuple(map(int, grid(meta) if callable(grid) else grid))
            return Spy(self.item[sizes], f"{self.label}[{sizes}]", self.calls)(*args, **kwargs)

        return launch


def _is_odd(result: Any) -> bool:
    """Whether it holds something that is neither a tensor nor None."""
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, tuple | list) else ()
    plain = result is None or isinstance(result, torch.Tensor | dict | tuple | list)
    return not plain or any(map(_is_odd, parts))


def _bare(item: Any) -> Any:
    return item.item if isinstance(item, Spy) else item


def _first_choice(kernel: Any) -> dict[str, Any]:
    configs = getattr(kernel, "configs", None) or getattr(getattr(kernel, "fn", None), "configs", None)
    return dict(configs[0].all_kwargs()) if configs else {}
