"""Measures what a problem's search found beside what the suite compares with, as its user calls both: wall time per call.

A process of its own loads the verified module as it is, the suite's reference, and, where that is PyTorch, torch.compile's versions of it.
All sides are called in random order in each of many rounds, on inputs that exceed twice the L2 cache, so that drift hits all alike; a
ratio is the median of the rounds' ratios with a bootstrap interval. A side that does not run is named, and is none.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evo.records import Configuration
from evo.suites.jobs import STORE
from evo.suites.preparing import TASK
from population_store.base import Ranked
from population_store.opening import open_store

COMPILERS: Mapping[str, str] = {"eager": "", "compile": "default", "max-autotune": "max-autotune-no-cudagraphs"}
"""Sides that a reference in PyTorch has, with the mode of torch.compile. CUDA graphs are no part of a compiler's kernel: with them any
side would be called differently."""
KEPT = 400
"""Characters of what a process said that ended without an answer."""


@dataclass(frozen=True)
class Comparing:
    """What to measure beside the best variant.

    Attributes:
        sides: Of `COMPILERS`; ``kernel`` for the suite's own kernel.
        deadline_s: Wall seconds for one problem.
        rounds: In which every side is called.
    """

    sides: tuple[str, ...]
    deadline_s: float = 300.0
    rounds: int = 30

    def measure(self, folder: Path, device: str) -> dict[str, Any]:
        """Measures a problem.

        Args:
            folder: Of the problem, with its task and store.
            device: ``gpu``, or ``cpu:TARGET``: then under Triton's interpreter, whose times say nothing of a GPU.

        Returns:
            ``variant``; ``cases``: of each ``case`` microseconds per side, ``us``, and ``ratios``, by round: logarithms of the side's time
            over that of the best variant; ``failed``: sides with why; or ``failure`` alone.
        """
        with open_store(str(folder / STORE)) as store:
            (name,) = json.loads(store.header.tasks)
            best = verified_best(store.ranking(name))
        if best is None:
            return {"failure": "no verified variant"}
        assert best.verify is not None
        chosen = {case.case: _plain(case.configuration) for case in best.verify.cases}
        request = {
            "task": str((folder / TASK).resolve()), "source": best.variant.source, "configurations": chosen, "sides": list(self.sides),
            "modes": dict(COMPILERS), "rounds": self.rounds, "device": "cuda" if device == "gpu" else "cpu",
        }  # fmt: skip
        return {"variant": best.variant.variant_id, **_asked(request, self.deadline_s)}


def verified_best(rows: Sequence[Ranked]) -> Ranked | None:
    """The best of the variants that passed verification."""
    return next((row for row in rows if row.verify is not None), None)


def _plain(configuration: Configuration) -> dict[str, Any]:
    return {key: value for key, value in configuration.items() if not key.startswith("autotune:")}


def _asked(request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="triton-evolve-compare-", ignore_cleanup_errors=True) as folder:
        question, answer, said = (Path(folder, name) for name in ("request.json", "answer.json", "said.txt"))
        question.write_text(json.dumps(request), encoding="utf-8")
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(str(Path(item).resolve()) for item in sys.path), "TMPDIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")), "TRITON_CACHE_DIR": str(Path(folder, "triton")),
        }  # fmt: skip
        if request["device"] == "cpu":
            environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        with said.open("wb") as stream:
            process = subprocess.Popen(
                [sys.executable, "-m", "evo.suites.comparing_child", str(question), str(answer)],
                cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
            )  # fmt: skip
            try:
                process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                late = f"it took more than {deadline_s:g} s"
            else:
                late = ""
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if answer.exists():  # written after each case, so that a deadline costs only what was not measured
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found if found.get("cases") or not late else {"failure": late}
        text = " ".join(said.read_text(encoding="utf-8", errors="replace").split())[-KEPT:]
        return {"failure": late or f"its process ended with status {process.returncode}: {text}"}
