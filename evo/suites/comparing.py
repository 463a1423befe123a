"""Measures what a problem's search found beside what the suite compares with, as its user calls both: wall time per call.

A process of its own loads the verified module as it is, the suite's reference, and, where that is PyTorch, torch.compile's versions of it.
All sides are called in random order in each of many rounds, on inputs that exceed twice the L2 cache, so that drift hits all alike; a
ratio is the median of the rounds' ratios with a bootstrap interval. A side that does not run is named, and is none.
The process is made ahead: it has imported all it needs when its turn on the device comes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
ANSWER, PREPARED, SAID = "answer.json", "prepared", "said.txt"
LOOK_S = 0.05


@dataclass(frozen=True)
class Comparing:
    """What to measure beside the best variant.

    Attributes:
        sides: Of `COMPILERS`; ``kernel`` for the suite's own kernel.
        deadline_s: Wall seconds for one problem.
        side_s: Wall seconds in which a side must have been compiled and called on one case.
        rounds: In which every side is called.
    """

    sides: tuple[str, ...]
    deadline_s: float = 300.0
    side_s: float = 100.0
    rounds: int = 30

    def measure(
        self,
        folder: Path,
        device: str,
        alone: Callable[[], AbstractContextManager[object]] = nullcontext,
        given_up: Callable[[], bool] = lambda: False,
    ) -> dict[str, Any] | None:
        """Measures a problem.

        Args:
            folder: Of the problem, with its task and store.
            device: ``gpu``, or ``cpu:TARGET``: then under Triton's interpreter, whose times say nothing of a GPU.
            alone: Entered once the process is ready to use the device, and left when it is done.
            given_up: Polled; once it is true, the process is ended.

        Returns:
            ``variant``; ``cases``: of each ``case`` microseconds per side, ``us``, and ``ratios``, by round: logarithms of the side's time
            over that of the best variant; ``failed``: sides with why; or ``failure`` alone. None where it was given up.
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
            "modes": dict(COMPILERS), "rounds": self.rounds, "side_s": self.side_s, "device": "cuda" if device == "gpu" else "cpu",
        }  # fmt: skip
        found = _asked(request, self.deadline_s, alone, given_up)
        return None if found is None else {"variant": best.variant.variant_id, **found}


def verified_best(rows: Sequence[Ranked]) -> Ranked | None:
    """The best of the variants that passed verification."""
    return next((row for row in rows if row.verify is not None), None)


def _plain(configuration: Configuration) -> dict[str, Any]:
    return {key: value for key, value in configuration.items() if not key.startswith("autotune:")}


def _asked(
    request: Mapping[str, Any],
    deadline_s: float,
    alone: Callable[[], AbstractContextManager[object]],
    given_up: Callable[[], bool],
) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory(prefix="triton-evolve-compare-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        answer = folder / ANSWER
        with _process(request, folder) as process:
            # Its imports take as long as its measurements; others measure meanwhile.
            _wait(process, deadline_s, lambda: (folder / PREPARED).exists() or given_up())
            with alone():
                if given_up():
                    return None
                with contextlib.suppress(OSError):  # it ended, which is told below
                    os.write(process.stdin.fileno(), b"\n")  # type: ignore[union-attr]  # a pipe was asked for
                in_time = _wait(process, deadline_s, given_up)
        if given_up():
            return None
        late = "" if in_time else f"it took more than {deadline_s:g} s"
        if answer.exists():  # written after each case, so that a deadline costs only what was not measured
            found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
            return found if found.get("cases") or not late else {"failure": late}
        said = (folder / SAID).read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = " ".join(said[-1].split())[:KEPT] if said else "it said nothing"
        return {"failure": late or f"its process ended with status {process.returncode}: {last}"}


@contextmanager
def _process(request: Mapping[str, Any], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its turn; ended with all that it started."""
    question = folder / "request.json"
    question.write_text(json.dumps(request), encoding="utf-8")
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(str(Path(item).resolve()) for item in sys.path), "TMPDIR": str(folder),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton"),
    }  # fmt: skip
    if request["device"] == "cpu":
        environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (folder / SAID).open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "evo.suites.comparing_child", str(question), str(folder / ANSWER), str(folder / PREPARED)],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=stream, stderr=stream, start_new_session=True,
        )  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            process.stdin.close()  # type: ignore[union-attr]  # a pipe was asked for


def _wait(process: subprocess.Popen[bytes], deadline_s: float, enough: Callable[[], bool]) -> bool:
    """Until it ends, or there is enough; False where neither came in time."""
    ends = time.monotonic() + deadline_s
    while time.monotonic() < ends:
        try:
            process.wait(LOOK_S)
            return True
        except subprocess.TimeoutExpired:
            if enough():
                return True
    return False
