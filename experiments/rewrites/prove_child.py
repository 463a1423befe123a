# ruff: noqa: E402 - Triton decides at import whether it interprets
"""What the proving child runs: modules with the code that calls them, under Triton's interpreter or through its compiler.

    python -m experiments.rewrites.prove_child interpret|compile < JOBS > ANSWERS

Both are JSON, one line per job. A job is {"original", "children": [source …], "driver", "config", "deadline_s"}: `driver` is
code that calls the module and leaves its results in `result_gold`. An answer is {"failure"} where the original itself cannot be run,
else {"seconds", "reached", "children": [{"same_bits", "error"} | {"failure"}]}, where `reached` are the functions that the driver calls,
directly or not; compiling, a child that compiles answers {"kernels": how many}.
Each module runs in a fork of its own, so that one that hangs or breaks costs no other.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import pickle
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

COMPILING = len(sys.argv) > 1 and sys.argv[1] == "compile"
os.environ["TRITON_INTERPRET"] = "0" if COMPILING else "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from evo.tracing.facade import fake_cuda
from evo.tracing.recorder import Recording
from evo.tracing.targets import TARGETS
from experiments.rewrites import flag_gems, other_projects
from experiments.rewrites.interpreting import completed
from experiments.rewrites.reaching import MARK, marked, noting

TARGET = "cuda:90"
MEMORY_BYTES = 12 << 30
ROUNDINGS = 64.0
"""By how many roundings a child may differ whose sums have another order; an integer by one."""
PATIENCE = 20
"""Wall seconds per processor second, where others use the machine too."""
CUDA, HOST = torch.device("cuda:0"), torch.device("cpu")
CLAIMS = {torch.Tensor.is_cuda: True, torch.Tensor.is_cpu: False, torch.Tensor.device: CUDA}
"""Descriptors of tensors and what they answer; their getters have them as `__self__`."""


class Claims(TorchFunctionMode):
    """Tensors are on the CPU and say that they are on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Called for every torch function."""
        descriptor = getattr(func, "__self__", None)
        for claimed, answer in CLAIMS.items():
            if descriptor is claimed:
                return answer
        if func is torch.device:
            return func(*args, **(kwargs or {}))
        if func is torch.Tensor.cuda:
            return args[0]
        return func(*map(_mapped, args), **{key: _mapped(item) for key, item in (kwargs or {}).items()})


def _mapped(item: Any) -> Any:
    if isinstance(item, str) and item.split(":")[0] == "cuda":
        return HOST
    return HOST if isinstance(item, torch.device) and item.type == "cuda" else item


@contextlib.contextmanager
def pretended() -> Iterator[None]:
    """A process that looks as if it had a GPU, whose autotuners take their first configuration."""
    Autotuner.run = _first_configuration
    if COMPILING and JITFunction.run.__name__ != "<lambda>":
        run = JITFunction.run
        JITFunction.run = lambda self, *args, grid, warmup, **options: run(self, *args, grid=grid, warmup=True, **options)
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills undefined memory
    with fake_cuda(Recording(TARGET, triton.__version__, 0), TARGETS[TARGET]), Claims():
        yield


def _first_configuration(self: Any, *args: Any, **options: Any) -> Any:
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    config = self.configs[0]
    if config.pre_hook is not None:
        config.pre_hook({**self.nargs, **options, **config.all_kwargs()})
    return self.fn.run(*args, **options, **config.all_kwargs())


def computed(job: dict[str, Any], source: str, folder: Path, reached: set[str]) -> list[Any]:
    """Everything that the job's calls of a module return, in order; `reached` gets the functions that they call, directly or not."""
    path = folder / "proved_module.py"
    path.write_text(source)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    vars(module)[MARK] = reached
    torch.manual_seed(0)
    with pretended():
        exec(compile(marked(source), str(path), "exec"), vars(module))
        config = getattr(module, "CONFIG", {})
        config.update({name: value for name, value in job["config"].items() if name in config})
        found = _driven(module, job["driver"], folder)
    return [item.detach() if isinstance(item, torch.Tensor) else item for item in _flat(found)]


def _driven(module: types.ModuleType, driver: str, folder: Path) -> Any:
    names = vars(module) | {"__name__": "__main__"}
    path = folder / "driver.py"
    path.write_text(driver)
    exec(compile(driver, str(path), "exec"), names)
    return names.get("result_gold")


def _flat(item: Any) -> Iterator[Any]:
    if isinstance(item, dict):
        item = list(item.values())
    if isinstance(item, list | tuple):
        for part in item:
            yield from _flat(part)
    elif isinstance(item, torch.Tensor | int | float | bool):
        yield item


def _unit(values: torch.Tensor) -> float:
    return torch.finfo(values.dtype).eps


def compared(first: list[Any], second: list[Any]) -> dict[str, Any]:
    """How far a child's results are from its parent's: in roundings of 1 + |value|, for integers `ROUNDINGS` per unit."""
    if len(first) != len(second):
        return {"failure": f"{len(second)} results, not {len(first)}"}
    same, error = True, 0.0
    for want, got in zip(first, second, strict=True):
        if not isinstance(want, torch.Tensor):
            same = same and want == got
            continue
        if not isinstance(got, torch.Tensor) or (want.dtype, want.shape, want.stride()) != (got.dtype, got.shape, got.stride()):
            return {
                "failure": f"another structure: {getattr(got, 'dtype', got)} {getattr(got, 'shape', '')}, not {want.dtype} {want.shape}"
            }
        a, b = want.double(), got.double()
        equal = (a == b) | (a.isnan() & b.isnan())
        if not equal.all():
            same = False
            apart = (a - b).abs() / (1.0 + a.abs()) / _unit(want) if want.is_floating_point() else (a - b).abs() * ROUNDINGS
            error = max(error, float(apart[~equal].nan_to_num(nan=float("inf")).max()))
    return {"same_bits": same, "error": error}


def forked(work: Callable[[], Any], deadline_s: float) -> Any:
    """What `work` returns in a fork, or {"failure"}; the deadline is in processor seconds."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        _work(work, read, write, math.ceil(deadline_s))
    os.close(write)
    data, end = b"", time.monotonic() + PATIENCE * deadline_s
    with os.fdopen(read, "rb", buffering=0) as pipe:
        while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
            block = pipe.read(1 << 20)
            if not block:
                break
            data += block
        else:
            data = pickle.dumps({"failure": f"took more than {deadline_s:g} s"})
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    slow = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    return pickle.loads(data) if data else {"failure": f"took more than {deadline_s:g} s" if slow else "ended its process"}


def _work(work: Callable[[], Any], read: int, write: int, cpu_s: int) -> None:
    os.close(read)
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    try:
        answer = work()
    except BaseException as error:  # noqa: BLE001 - whatever a module raises is its answer
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        where = [frame for frame in traceback.extract_tb(root.__traceback__) if "proved_module" in frame.filename]
        text = f"{type(root).__name__}: {str(error)[-600:]}" + (f" at line {where[-1].lineno}" if where else "")
        answer = {"failure": text}
    with os.fdopen(write, "wb") as pipe:
        pipe.write(pickle.dumps(answer))
    os._exit(0)


def _compiled(job: dict[str, Any], source: str, folder: Path) -> dict[str, Any]:
    made: list[str] = []
    triton.knobs.compilation.listener = lambda **known: made.append(str(known.get("src")))
    computed(job, source, folder, set())
    return {"kernels": len(made)}


def proved(job: dict[str, Any]) -> dict[str, Any]:
    """The answer to one job."""
    with tempfile.TemporaryDirectory(prefix="rewrites-") as name:
        folder, deadline = Path(name), float(job["deadline_s"])
        if COMPILING:
            children = [forked(functools.partial(_compiled, job, source, folder), deadline) for source in job["children"]]
            return {"children": children}
        kept = folder / "results"
        first = forked(functools.partial(_kept, job, folder, kept), deadline)
        if "failure" in first or not first["results"]:
            return {"failure": first.get("failure", "its driver leaves no results")}
        seconds = first["seconds"]

        def against(source: str) -> dict[str, Any]:
            return compared(torch.load(kept), computed(job, source, folder, set()))

        again = forked(functools.partial(against, job["original"]), 3 * seconds + 10)
        if not again.get("same_bits"):  # it reads memory that nobody wrote or that is not its own
            return {"failure": f"its own results differ from run to run: {again}"}
        return {
            "seconds": seconds,
            "reached": first["reached"],
            "children": [forked(functools.partial(against, source), 3 * seconds + 10) for source in job["children"]],
        }


def _kept(job: dict[str, Any], folder: Path, path: Path) -> dict[str, Any]:
    reached: set[str] = set()
    end = noting(reached)
    results = computed(job, job["original"], folder, reached)
    end()
    torch.save(results, path)
    return {"results": len(results), "seconds": time.process_time(), "reached": sorted(reached)}


WARM = """
import torch, triton, triton.language as tl

@triton.jit
def one(x, n, B: tl.constexpr):
    tl.store(x + tl.arange(0, B), 1.0, mask=tl.arange(0, B) < n)

x = torch.zeros(4, device="cuda")
one[(1,)](x, 4, B=4)
result_gold = [x]
"""


def main() -> None:
    """Answers jobs as they come."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if not COMPILING:
        completed()
        flag_gems.importable()
        other_projects.importable()
    with tempfile.TemporaryDirectory() as folder:  # whatever is imported on first use is so before the forks
        computed({"config": {}, "driver": "result_gold = x"}, WARM, Path(folder), set())
    for line in sys.stdin:
        sys.stdout.write(json.dumps(proved(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
