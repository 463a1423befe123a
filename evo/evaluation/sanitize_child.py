"""The program that compute-sanitizer watches: replays plans from a file of ours, once each, and says so.

Inputs are made on the CPU and every buffer is an allocation of its own, so that hardly a kernel runs but the plans' and every access
beyond a buffer is one beyond an allocation.
"""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from evo.descendants import end_with_caller
from evo.evaluation.graphs import prepare, supply_gradients
from evo.evaluation.inputs import make_inputs
from evo.evaluation.runner import Execution, PlainMemory, load_plan, set_scratch_allocator
from evo.tasks.loading import load_task
from evo.tracing.compiler import Binary
from evo.tracing.plan import LaunchPlan

DONE = "triton-evolve: all plans were replayed"


@dataclass(frozen=True)
class Sanitized:
    """One plan with its binaries, on a case of a task (as a reference that `load_task` takes)."""

    task: str
    case: str
    plan: LaunchPlan
    binaries: tuple[Binary, ...]


def replay(works: Sequence[Sanitized], seed: int) -> None:
    """Runs every plan once, forward and backward."""
    device = torch.device("cuda:0")
    set_scratch_allocator(device)
    for work in works:
        task = load_task(work.task, Path.cwd(), check=False)
        inputs = make_inputs(task, task.case(work.case), seed, "cpu")
        execution = Execution(work.plan, load_plan(work.plan, work.binaries, device), PlainMemory(device), device)
        with torch.no_grad():
            prepare(execution, inputs)
            execution.run("forward")
            if task.backward:
                supply_gradients(execution, seed)
                execution.run("backward")
        torch.cuda.synchronize()


def main() -> None:
    """Reads the file that `evo.evaluation.sanitize` wrote: seconds to live, a seed, and what to replay."""
    end_with_caller()
    deadline_s, seed, works = pickle.loads(Path(sys.argv[1]).read_bytes())
    signal.alarm(deadline_s)  # should nobody be left to end this process
    replay(works, seed)
    sys.stdout.write(DONE + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
