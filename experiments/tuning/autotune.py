"""Triton's own autotuner on the same kernels and spaces: its wall time from an empty cache, and the configuration that it picks.

The kernel modules stay as they are: their jitted function is replaced by an autotuned one that drops the knobs the entry passes.
One kernel at a time runs in a process of its own (`python -m experiments.tuning.autotune REQUEST ANSWER`), with a cache folder of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.records import Configuration, KnobValue
from experiments.tuning.catalogue import Subject, subjects

COMPILER_KNOBS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""What a `triton.Config` takes beside the kernel's own arguments."""


class Retuned:
    """Stands for a module's kernel: launches the autotuned one without the knobs that the entry passes.

    Args:
        tuned: What `triton.autotune` made.
        names: Of the knobs.
    """

    def __init__(self, tuned: Any, names: Sequence[str]) -> None:
        self._tuned = tuned
        self._names = frozenset(names)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """As a kernel's."""
        launch = self._tuned[grid]
        return lambda *arguments, **named: launch(*arguments, **{k: v for k, v in named.items() if k not in self._names})


def retuned(
    path: Path, entry: str, names: Sequence[str], configurations: Sequence[Configuration], **options: Any
) -> tuple[Callable[..., Any], Any]:
    """A module's entry with its one kernel autotuned over some configurations, and the autotuner.

    Args:
        path: Of the module.
        entry: Name of its function.
        names: Of the knobs that vary.
        configurations: To choose from.
        options: For `triton.autotune`, beside `configs` and `key`.

    Raises:
        ValueError: The module has not exactly one kernel.
    """
    import triton
    from triton.runtime.jit import KernelInterface

    spec = importlib.util.spec_from_file_location(f"retuned_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernels = {name: value for name, value in vars(module).items() if isinstance(value, KernelInterface)}
    if len(kernels) != 1:
        raise ValueError(f"{path.name} has {len(kernels)} kernels, and one is tuned")
    ((name, kernel),) = kernels.items()
    tuned = triton.autotune(configs=[config_of(item, names) for item in configurations], key=[], **options)(kernel)
    setattr(module, name, Retuned(tuned, names))
    function: Callable[..., Any] = getattr(module, entry)
    return function, tuned


def config_of(configuration: Configuration, names: Sequence[str]) -> Any:
    """As Triton writes it."""
    import triton

    chosen = {name: configuration[name] for name in names}
    own = {name: value for name, value in chosen.items() if name not in COMPILER_KNOBS}
    return triton.Config(own, **{name: value for name, value in chosen.items() if name in COMPILER_KNOBS})


def chosen_by(tuned: Any, names: Sequence[str]) -> dict[str, KnobValue]:
    """The knobs of the configuration that an autotuner picked."""
    values = tuned.best_config.all_kwargs()
    return {name: values[name] for name in names}


def autotune(
    subject: Subject, space: Mapping[str, Sequence[KnobValue]], chosen: Sequence[Configuration], seed: int
) -> dict[str, Any]:
    """In a process of its own, on the GPU: the first call tunes, the second does not."""
    import torch

    from evo.evaluation.inputs import make_inputs

    task, case = subject.load()
    with tempfile.TemporaryDirectory(prefix="triton-evolve-autotune-") as folder:
        path = Path(folder) / f"{subject.name}.py"
        path.write_text(subject.source, encoding="utf-8")
        call, tuned = retuned(path, task.entry, list(space), chosen)
        arguments = make_inputs(task, case, seed, "cuda").arguments
        seconds = []
        for _ in range(2):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            call(*arguments)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begun)
    return {"wall_s": seconds[0] - seconds[1], "configurations": len(chosen), "chosen": chosen_by(tuned, list(space))}


@dataclass(frozen=True)
class Tuned:
    """What Triton's autotuner did: wall seconds for so many of `of` configurations and its choice, or why it failed."""

    name: str
    of: int
    configurations: int
    wall_s: float
    chosen: Configuration | None
    error: str = ""

    @property
    def whole(self) -> bool:
        """Whether it was given the whole space."""
        return self.configurations == self.of

    @property
    def extrapolated_s(self) -> float:
        """Wall seconds for the whole space, linearly."""
        return self.wall_s * self.of / self.configurations if self.configurations else 0.0


def run_autotune(
    subject: Subject,
    space: Mapping[str, Sequence[KnobValue]],
    chosen: Sequence[Configuration],
    of: int,
    seed: int,
    deadline_s: float,
) -> Tuned:
    """Runs the above in a new process with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="triton-evolve-autotune-") as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        plain = {"name": subject.name, "space": {k: list(v) for k, v in space.items()}, "chosen": [dict(c) for c in chosen]}
        request.write_text(json.dumps({**plain, "seed": seed}), encoding="utf-8")
        root = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "TRITON_CACHE_DIR": str(Path(folder) / "cache"), "PYTHONPATH": root}
        command = [sys.executable, "-m", "experiments.tuning.autotune", str(request), str(answer)]
        try:
            ran = subprocess.run(
                command, env=environment, cwd=root, capture_output=True, text=True, timeout=deadline_s, check=False
            )
        except subprocess.TimeoutExpired:
            return Tuned(subject.name, of, len(chosen), 0.0, None, f"did not end within {deadline_s:.0f} s")
        if ran.returncode or not answer.exists():
            last = (ran.stderr.strip().splitlines() or ["no message"])[-1]
            return Tuned(subject.name, of, len(chosen), 0.0, None, f"ended with {ran.returncode}: {last[:300]}")
        found = json.loads(answer.read_text(encoding="utf-8"))
    return Tuned(subject.name, of, found["configurations"], found["wall_s"], Configuration(found["chosen"]))


def main() -> None:
    """The process of its own."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    (subject,) = subjects([request["name"]])
    chosen = [Configuration(item) for item in request["chosen"]]
    found = autotune(subject, request["space"], chosen, request["seed"])
    Path(sys.argv[2]).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
