"""Runs kernel modules under Triton's interpreter on draws, and keeps what they return: python interpreted_draws.py JOBS OUTPUTS.

JOBS is a JSON list of {task, source, configuration, draws: [[case, seed, variation], …]}. A process of its own, since the
interpreter must be chosen before triton is imported.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from evo.tasks.draws import Variation
from evo.tasks.inputs import make_inputs
from evo.tasks.loading import load_task
from evo.tracing.trace_child import load_module


def main() -> None:
    torch.set_num_threads(1)
    np.seterr(all="ignore")  # what overflows is judged
    results = []
    jobs, outputs = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]).resolve()
    os.chdir(tempfile.gettempdir())  # modules are written where they are loaded from
    for job in jobs:
        task = load_task(job["task"])
        module = load_module(job["source"], job["configuration"])
        done = []
        for case, seed, variation in job["draws"]:
            inputs = make_inputs(task, task.case(case), seed, "cpu", Variation(variation))
            start = time.process_time()
            try:
                returned = getattr(module, task.entry)(*inputs.arguments)
            except Exception as error:  # noqa: BLE001  told to the test
                returned = f"{type(error).__name__}: {error}"
            done.append((returned, time.process_time() - start))
        results.append(done)
    torch.save(results, outputs)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        main()
