"""Runs a TritonBench file's test in a sandbox and notes which calls it makes; what the sandboxed child does.

The test's tensors are real ones on the CPU that claim to be on a GPU, so that it may look at values; kernels are not launched, and what
they would have written stays zero. Each call of something the kernel part defines becomes an entry: a function, in source form,
of the call's tensors and numbers, and a specification of those.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction, KernelInterface

from evo.suites.entries import Made, Text, Unread, specification
from evo.tracing.facade import fake_cuda
from evo.tracing.recorder import Recording
from evo.tracing.targets import TARGETS
from evo.tracing.trace_child import describe, load_module

MAX_CALLS = 48
"""Different calls per file that are kept."""
_CLAIMED = {torch.Tensor.is_cuda: True, torch.Tensor.is_cpu: False, torch.Tensor.device: torch.device("cuda:0")}
_EMPTY = {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}
_BACKWARD = {torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad}


def record(request: dict[str, Any]) -> dict[str, Any]:
    """Runs the kernel part and the test.

    Args:
        request: ``source`` (kernel part), ``driver`` (the test part), ``target``.

    Returns:
        ``module`` and ``driver``: what ended each before its end, empty if nothing did; ``calls``, see `Calls.note`.
    """
    torch.manual_seed(0)
    answer: dict[str, Any] = {"module": "", "driver": "", "calls": []}
    calls = Calls()
    with fake_cuda(Recording(request["target"], triton.__version__, 0), TARGETS[request["target"]]), Claims(calls):
        _quiet(calls)
        try:
            module = load_module(request["source"], {})
        except BaseException as error:  # noqa: BLE001  whatever the file's code raises is noted
            return {**answer, "module": describe(error)["message"]}
        try:
            _drive(module, request["driver"], calls)
        except BaseException as error:  # noqa: BLE001  as above
            answer["driver"] = describe(error)["message"]
    return {**answer, "calls": [call for call in calls.noted if call["launches"] or call["unread"] or call["error"]]}


def _drive(module: types.ModuleType, driver: str, calls: Calls) -> None:
    """Runs the test part among the module's names, those it defines wrapped."""
    names = {
        name: Spy(item, name, calls) if _is_of(module, item) and not name.startswith("__") else item
        for name, item in vars(module).items()
    }
    path = Path("driver.py").resolve()
    path.write_text(driver)
    names |= {"__name__": "__main__", "__file__": str(path)}
    exec(compile(driver, str(path), "exec"), names)
    if not calls.noted:
        for name, item in list(names.items()):
            if name.startswith("test") and isinstance(item, types.FunctionType):
                item()


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


class Claims(TorchFunctionMode):
    """Tensors on the CPU say that they are on the GPU; devices on the way in become the CPU."""

    def __init__(self, calls: Calls) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every torch function and tensor method or property."""
        keywords = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **keywords)
        descriptor = getattr(func, "__self__", None)
        for claimed, answer in _CLAIMED.items():
            if descriptor is claimed:
                return answer
        if func is torch.Tensor.get_device:
            return 0
        if func is torch.Tensor.cuda:
            return args[0]
        if func in _BACKWARD:
            self._calls.differentiate()
        args = tuple(map(_on_host, args))
        result = func(*args, **{key: _on_host(item) for key, item in keywords.items() if key != "pin_memory"})
        return result.zero_() if func in _EMPTY else result


def _on_host(item: Any) -> Any:
    if isinstance(item, torch.device) or (isinstance(item, str) and item.split(":")[0] == "cuda"):
        return torch.device("cpu")
    return item


class Calls:
    """The calls so far.

    Attributes:
        launches: Kernels that would have been launched.
        noted: Of each different call: ``label`` (what is called), ``form``, ``text`` (source of the entry), ``arguments`` (specification
            or plain value each), ``parameters``, ``backward``, ``launches``, ``error`` (what it raised), ``unread`` (why no entry says it).
        made: Instances of the module's classes by id, with what they were made from.
    """

    def __init__(self) -> None:
        self.launches = 0
        self.noted: list[dict[str, Any]] = []
        self.made: Made = {}

    def note(self, label: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], instance: Any = None) -> dict[str, Any]:
        """Notes a call, once."""
        entry: dict[str, Any] = {"label": label, "form": "function", "text": "", "arguments": [], "parameters": {}}
        entry |= {"backward": False, "launches": 0, "error": "", "unread": ""}
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
        try:
            return self.item(*given, **named)
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


def _bare(item: Any) -> Any:
    return item.item if isinstance(item, Spy) else item


def _first_choice(kernel: Any) -> dict[str, Any]:
    configs = getattr(kernel, "configs", None) or getattr(getattr(kernel, "fn", None), "configs", None)
    return dict(configs[0].all_kwargs()) if configs else {}
