"""The same search on 1, 2, 4 … GPUs of one host: evaluations per minute, and what limits them.

    python -m experiments.gpu_scaling measure --gpus 1 2 4 8 --evaluations 240 --kill --out DIR      # on the host
    python -m experiments.gpu_scaling simulate --gpus 1 2 4 8 --out DIR                              # anywhere: the curve beside it
    python -m experiments.gpu_scaling page DIR

Each count has a Ray, a store and a search of its own, with so many GPUs and a fixed number of cores for each, so that a run on two GPUs
of a host of eight is what a host of two would do. No language model; seed, tasks and evaluations are the same. With ``--kill`` the largest
run is made once more, and one of its evaluators is killed half-way. Runs are watched from outside (`experiments.scaling.watching`).
Simulated devices are those of `triton-evolve bench cluster`: as many evaluations at a time, and as long, as one H200 had on record.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evo.cluster.processes import die_with_parent
from evo.cluster.session import ENVIRONMENT
from evo.commands.bench_cluster import check, measure
from evo.commands.measured import measured_with, write_results
from evo.commands.search import Overrides, run_command
from evo.config import ClusterSection, RunConfig, write_config
from evo.evaluation.simulated_device import H200
from evo.search.settings import Budget
from experiments.scaling.page import NAME, page, write_plot
from experiments.scaling.watching import Watch, figures, processes_below, seconds_until
from population_store.opening import open_store

TASKS = ("gemm_bias_gelu", "attention", "softmax")
CORES_PER_GPU = 16
GOOD_ENOUGH = 0.99
"""Of the lowest final fitness of all runs: what every run reaches, and times are taken until."""
REPLACED_S = 180.0
"""How long a killed evaluator's successor is waited for."""
KILL_AT = 0.5


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    for name in ("measure", "simulate"):
        step = steps.add_parser(name)
        step.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8])
        step.add_argument("--out", type=Path, required=True)
        step.add_argument("--commit", help="for copies without their git history")
        step.add_argument("--seed", type=int, default=0)
        if name == "measure":
            step.add_argument("--evaluations", type=int, default=240)
            step.add_argument("--tasks", nargs="+", default=list(TASKS))
            step.add_argument("--cores", type=int, default=CORES_PER_GPU, help="for each GPU")
            step.add_argument("--kill", action="store_true")
            step.add_argument("--evaluator", default="kernels", help="simulated: no GPU is used, and figures say nothing of any")
        else:
            step.add_argument("--seconds", type=float, default=60.0)
    steps.add_parser("page").add_argument("out", type=Path)
    one = steps.add_parser("one")
    one.add_argument("config", type=Path)
    one.add_argument("store")
    one.add_argument("cpus", type=int)
    one.add_argument("gpus", type=int)
    options = parser.parse_args(arguments)
    if options.step == "one":
        sys.exit(_one(options.config, options.store, options.cpus, options.gpus))
    results = _known(options.out)
    if options.step == "measure":
        results |= _measured(options)
    elif options.step == "simulate":
        results |= _simulated(options)
    write_results(options.out, NAME, results, page(results))
    write_plot(options.out, results)
    print(page(results))


def _known(folder: Path) -> dict[str, Any]:
    path = folder / f"{NAME}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _measured(options: argparse.Namespace) -> dict[str, Any]:
    runs = [_run(options, count, kill=False) for count in sorted(options.gpus)]
    tasks = options.tasks
    wanted = {task: GOOD_ENOUGH * min(run["best"].get(task, 0.0) for run in runs) for task in tasks}
    for run in runs:
        run["seconds_until_good"] = seconds_until(run.pop("samples"), wanted)
    killed = _run(options, max(options.gpus), kill=True) if options.kill else None
    if killed is not None:
        killed.pop("samples")
    return {
        "session": measured_with(options.commit, ["python", "-m", "experiments.gpu_scaling", *sys.argv[1:]]),
        "evaluator": options.evaluator,
        "tasks": tasks,
        "evaluations": options.evaluations,
        "cores_per_gpu": options.cores,
        "seed": options.seed,
        "wanted": wanted,
        "runs": runs,
        "killed": killed,
    }


def _run(options: argparse.Namespace, count: int, *, kill: bool) -> dict[str, Any]:
    """One search, in processes of its own."""
    kernels = options.evaluator == "kernels"
    budget = Budget(evaluations=options.evaluations)
    cluster = ClusterSection(device="gpu" if kernels else "cpu", evaluators=count)
    config = RunConfig(
        name="scaling", seed=options.seed, tasks=tuple(options.tasks), evaluator=options.evaluator, budget=budget, cluster=cluster
    )
    print(f"{count} GPUs{', one evaluator is killed' if kill else ''} …", flush=True)
    with tempfile.TemporaryDirectory(prefix="triton-evolve-scaling-") as folder:
        path, store, said = Path(folder, "config.yaml"), Path(folder, "run.sqlite"), Path(folder, "said.txt")
        write_config(config, path)
        cpus = count * options.cores
        command = [sys.executable, "-m", "experiments.gpu_scaling", "one", str(path), str(store), str(cpus), str(count * kernels)]
        watch = Watch(store, options.tasks, count * kernels)
        with said.open("wb") as stream:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
            try:
                death = _kill_one(process, watch, options.evaluations) if kill else None
                process.wait()
            finally:
                process.terminate()
                samples = watch.stop()
        if process.returncode != 0:
            raise SystemExit(f"the search on {count} GPUs failed:\n{said.read_text(errors='replace')[-4000:]}")
        with open_store(str(store)) as opened:
            recorded = check(opened, samples[-1].evaluations)
    found = {"gpus": count, **figures(samples, options.evaluations, count), "recorded": recorded, "samples": samples}
    return found if death is None else {**found, "death": death}


def _kill_one(process: subprocess.Popen[bytes], watch: Watch, evaluations: int) -> dict[str, Any]:
    """Kills one evaluator half-way.

    Returns:
        ``at``: seconds since the run began; ``evaluations``: recorded by then; ``replaced_s``: until there are as many again, or None.
    """
    while process.poll() is None and watch.evaluations() < KILL_AT * evaluations:
        time.sleep(0.05)
    before = processes_below("EvaluatorActor")
    if process.poll() is not None or not before:
        raise SystemExit("the search ended before one of its evaluators could be killed: give more --evaluations")
    os.kill(before[0], signal.SIGKILL)
    at, done = watch.now(), watch.evaluations()
    while process.poll() is None and watch.now() < at + REPLACED_S:
        if len(set(processes_below("EvaluatorActor")) - {before[0]}) >= len(before):
            return {"at": at, "evaluations": done, "replaced_s": watch.now() - at}
        time.sleep(0.05)
    return {"at": at, "evaluations": done, "replaced_s": None}


def _one(config: Path, store: str, cpus: int, gpus: int) -> int:
    """The search itself, on a Ray that has no more than it is given."""
    die_with_parent()
    cores = sorted(os.sched_getaffinity(0))[:cpus]
    os.sched_setaffinity(0, cores)
    os.environ.update(ENVIRONMENT)
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(number) for number in range(gpus))
    import ray

    ray.init(address="local", num_cpus=cpus, num_gpus=gpus, include_dashboard=False, log_to_driver=False)
    try:
        return run_command(config, store, Overrides(no_export=True))
    finally:
        ray.shutdown()


def _simulated(options: argparse.Namespace) -> dict[str, Any]:
    """Evaluations per minute of so many simulated GPUs, and the engine's share of a core."""
    from evo.cluster.session import ray_session

    curve = []
    with ray_session(ClusterSection()):
        for count in sorted(options.gpus):
            print(f"{count} simulated GPUs …", flush=True)
            evaluators = count * H200.threads
            run = measure(evaluators, evaluators / H200.mean_s, options.seconds, options.seed)
            engine_share = run["cpu_ms"]["engine"] * run["per_second"] / 1e3
            curve.append({"gpus": count, "per_minute": 60 * run["per_second"], "engine_share": engine_share})
    session = measured_with(options.commit, ["python", "-m", "experiments.gpu_scaling", *sys.argv[1:]])
    return {"simulated": {"session": session, "record": H200.origin, "curve": curve}}


if __name__ == "__main__":
    main()
