"""Runs kernel modules under Triton's interpreter on draws, in a process of its own: it must be chosen before triton is imported.

As a script: ``python interpreted_draws.py JOBS OUTPUTS``, where JOBS is a JSON list of {task, source, configuration,
draws: [[case, seed, variation], …]}; as a module, `run_interpreted`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo.evaluation.oracle import Outputs, flatten_outputs
from evo.tasks.base import Task
from evo.tasks.draws import Variation
from evo.tasks.inputs import make_inputs
from evo.tasks.loading import load_task


def run_interpreted(jobs: Sequence[dict[str, Any]], folder: Path) -> list[list[tuple[Any, float]]]:
    """For each job, what the entry returned (or its error as text) and the processor seconds it took, per draw."""
    (folder / "jobs.json").write_text(json.dumps(list(jobs)))
    subprocess.run(
        [sys.executable, __file__, str(folder / "jobs.json"), str(folder / "outputs.pt")],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
        timeout=1800,
    )
    loaded: list[list[tuple[Any, float]]] = torch.load(folder / "outputs.pt")
    return loaded


def flattened(task: Task, returned: Any) -> Outputs:
    """The outputs of a call, as `run_interpreted` gives them: where a task updates arguments, they come beside what was returned."""
    return flatten_outputs(*returned) if task.mutates else flatten_outputs(returned)


def main() -> None:
    """The script."""
    from evo.evaluation.watched_memory import watch_memory
    from evo.tracing.trace_child import load_module

    watch_memory()

    torch.set_num_threads(1)
    np.seterr(all="ignore")  # what overflows is judged
    results = []
    jobs, outputs = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]).resolve()
    tasks = {name: load_task(name) for name in {job["task"] for job in jobs}}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # modules are written where they are loaded from
        for job in jobs:
            task = tasks[job["task"]]
            module = load_module(job["source"], job["configuration"])
            done = []
            for case, seed, variation in job["draws"]:
                inputs = make_inputs(task, task.case(case), seed, "cpu", Variation(variation))
                start = time.process_time()
                try:
                    returned = getattr(module, task.entry)(*inputs.arguments)
                    if task.mutates:
                        returned = (returned, [inputs.arguments[position] for position in task.mutates])
                except Exception as error:  # noqa: BLE001  told to the test
                    returned = f"{type(error).__name__}: {error}"
                done.append((returned, time.process_time() - start))
            results.append(done)
        torch.save(results, outputs)
        os.chdir("/")


if __name__ == "__main__":
    main()
