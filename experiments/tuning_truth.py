"""How close tuning comes to the truth, and at what cost: whole grids measured once, tuners replayed on them.

    python experiments/tuning_truth.py measure --out DIR            # on a GPU: every configuration of every kernel
    python experiments/tuning_truth.py autotune DIR                 # on a GPU: Triton's own autotuner on the same spaces
    python experiments/tuning_truth.py strategies DIR               # anywhere: ours, random search, TPE, Kernel Tuner

`measure` compiles each grid on all cores, gates every configuration once and times it; the fastest tenth is timed five times more, and
those figures count. Each kernel is written when it is done, and one that is there is not measured again, so the command resumes.
`strategies` needs no GPU; Kernel Tuner is asked in an interpreter of its own (`--kernel-tuner PYTHON`, with the package kernel-tuner).
Writes DIR/grids/KERNEL.json, DIR/autotune.json, DIR/tuning_truth.json and .md, DIR/importance/KERNEL.svg; the table is printed last.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.commands.measured import measured_with, typed, write_results
from evo.evaluation.tuning_surrogate import Guess
from evo.records import Configuration
from experiments.tuning.autotune import Tuned, run_autotune
from experiments.tuning.catalogue import subjects
from experiments.tuning.grid import Grid, load_grids
from experiments.tuning.guessing import guesses, worth
from experiments.tuning.importance import write_chart
from experiments.tuning.kernel_tuner_side import STRATEGIES as THEIRS
from experiments.tuning.kernel_tuner_side import kernel_tuner_courses
from experiments.tuning.page import grids_table, page, printed
from experiments.tuning.standing import overall, standings
from experiments.tuning.strategies import QUICK, STRATEGIES, Course, replay

NAME = "tuning_truth"
MODELLED_NOISE = 0.01
"""A modelled grid has no noise of its own; what strategies see of it gets this much."""
WHOLE = ("transpose", "matvec")
"""Kernels that Triton's autotuner gets the whole space of: those that compile fastest."""


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    options = parser().parse_args(arguments)
    begun = time.monotonic()
    session = measured_with(options.commit, typed(f"python {sys.argv[0]}"))
    if options.command == "measure":
        measure_command(options, session, begun)
    elif options.command == "autotune":
        autotune_command(options, session, begun)
    else:
        strategies_command(options, session)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = found.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="measure the grids that DIR lacks")
    measuring.add_argument("--out", type=Path, required=True, help="folder DIR")
    measuring.add_argument("--device", default="gpu", help="gpu, or cpu:cuda:90 for modelled latencies")
    measuring.add_argument("--workers", type=int, help="cores to compile on; left out: two less than there are, at most 14")
    measuring.add_argument("--values", type=int, help="at most so many values of each knob, for a smaller grid")
    measuring.add_argument("--gate", choices=("every", "declared"), default="every", help="which configurations are gated")
    measuring.add_argument("--seed", type=int, default=0, help="of the inputs")
    tuning = commands.add_parser("autotune", help="run Triton's autotuner on measured grids")
    tuning.add_argument("out", type=Path, metavar="DIR")
    tuning.add_argument("--whole", action="append", help=f"kernels that get the whole space; left out: {', '.join(WHOLE)}")
    tuning.add_argument(
        "--sample", type=int, default=12, help="configurations of the others, from which the whole is extrapolated"
    )
    tuning.add_argument("--seed", type=int, default=0, help="of the sample and of the inputs")
    for command in (measuring, tuning):
        command.add_argument("--limit-s", type=float, default=580.0, help="wall seconds after which nothing is begun")
    replaying = commands.add_parser("strategies", help="replay tuners on measured grids")
    replaying.add_argument("out", type=Path, metavar="DIR")
    replaying.add_argument("--seeds", type=int, default=5, help="seeds 0 up to this number")
    replaying.add_argument("--share", type=float, default=0.15, help="trials, as a share of the valid configurations")
    replaying.add_argument("--noise", type=float, help="standard deviation of what strategies see; left out: as measured")
    replaying.add_argument("--kernel-tuner", help="an interpreter that has the package kernel-tuner")
    replaying.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    for command in (measuring, tuning, replaying):
        command.add_argument("--only", action="append", help="only these kernels, each by an option of its own")
        command.add_argument("--commit", help="of this project, for copies without their git history")
    return found


def measure_command(options: argparse.Namespace, session: dict[str, Any], begun: float) -> None:
    """Measures what is not measured yet."""
    from experiments.tuning.measuring import Plan, measure, opened  # imports torch

    plan = Plan(options.values, options.gate, options.seed)
    left = [item for item in subjects(options.only) if not (options.out / "grids" / f"{item.name}.json").exists()]
    if left:
        until = begun + options.limit_s
        with opened(options.device, options.workers) as place:
            measure(place, left, plan, options.out, session, until, lambda text: print(text, flush=True))
    print("\n".join(grids_table(load_grids(options.out))), flush=True)


def autotune_command(options: argparse.Namespace, session: dict[str, Any], begun: float) -> None:
    """Runs Triton's autotuner on the kernels whose figures are missing; whole spaces first."""
    path = options.out / "autotune.json"
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"session": session, "rows": []}
    whole = options.whole or WHOLE
    known["rows"] = [row for row in known["rows"] if not row["error"]]  # what failed, say for lack of time, is tried again
    done = {row["name"] for row in known["rows"]}
    wanted = [
        grid for grid in load_grids(options.out) if grid.name not in done and (not options.only or grid.name in options.only)
    ]
    for grid in sorted(wanted, key=lambda item: item.name not in whole):
        (subject,) = subjects([grid.name])
        left = begun + options.limit_s - time.monotonic()
        if left < 10 or not subject.tunable_launches:
            print(
                f"{grid.name}: left out, {'a second launch depends on its knobs' if left >= 10 else 'the time is up'}", flush=True
            )
            continue
        chosen = [entry.configuration for entry in grid.entries]
        if grid.name not in whole:  # valid ones: what does not fit costs Triton little but can take its compiler minutes
            valid = [entry.configuration for entry in grid.valid]
            chosen = random.Random(options.seed).sample(valid, min(options.sample, len(valid)))
        tuned = run_autotune(subject, grid.space, chosen, len(grid.entries), options.seed, left)
        known["rows"].append(autotune_row(grid, tuned))
        path.write_text(json.dumps(known, indent=1), encoding="utf-8")
        print(f"{grid.name}: {tuned.configurations} configurations in {tuned.wall_s:.1f} s {tuned.error}", flush=True)


def autotune_row(grid: Grid, tuned: Tuned) -> dict[str, Any]:
    """Plain figures; the quality of a choice among a sample would say nothing."""
    chosen = None if tuned.chosen is None else Configuration({**grid.default, **tuned.chosen})
    true_us = None if chosen is None else grid.latencies.get(chosen)
    return {
        "name": tuned.name,
        "of": tuned.of,
        "configurations": tuned.configurations,
        "wall_s": tuned.wall_s,
        "whole": tuned.whole,
        "extrapolated_s": tuned.extrapolated_s,
        "chosen": None if chosen is None else dict(chosen),
        "quality": grid.best_us / true_us if true_us and tuned.whole else None,
        "error": tuned.error,
    }


def strategies_command(options: argparse.Namespace, session: dict[str, Any]) -> None:
    """Replays all strategies, writes and prints the figures."""
    grids = [grid for grid in load_grids(options.out) if grid.valid and (not options.only or grid.name in options.only)]
    # For processes to come, which use the cores already: small matrices are slower on several threads.
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    noise = {grid.name: chosen_noise(grid, options.noise) for grid in grids}
    seeds = range(options.seeds)
    known = guesses(grids)
    courses = replayed(grids, noise, known, list(seeds), options.share, options.workers)
    if options.kernel_tuner:
        courses += kernel_tuner_courses(options.kernel_tuner, grids, list(seeds), noise, options.share, workers=options.workers)
    rows = standings(grids, courses, options.share)
    path = options.out / "autotune.json"
    theirs = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    costs = {row["grid"]: row["whole_gpu_s"][1] + row["compile_s"] for row in rows if row["strategy"] == "ours"}
    results: dict[str, Any] = {
        "session": session,
        "seeds": list(seeds),
        "share": options.share,
        "noise": noise,
        "guesses": {grid.name: worth(grid, known[grid.name], QUICK) for grid in grids if grid.name in known},
        "kernel_tuner": list(THEIRS) if options.kernel_tuner else [],
        "overall": overall(rows),
        "standings": rows,
        "autotune": [{**row, "ours_s": costs[row["name"]]} for row in theirs if row["name"] in costs],
        "importances": {grid.name: write_chart(grid, options.out / "importance") for grid in grids},
    }
    write_results(options.out, NAME, results, page(results, grids))
    print(printed(results, grids), flush=True)


def chosen_noise(grid: Grid, given: float | None) -> float:
    """What was given, else the larger of one timing's own noise and the A/A floor; modelled grids get some of their own."""
    if given is not None:
        return given
    return max(grid.noise, grid.noise_floor) if grid.measured else MODELLED_NOISE


def replayed(
    grids: Sequence[Grid],
    noise: Mapping[str, float],
    known: Mapping[str, Guess],
    seeds: Sequence[int],
    share: float,
    workers: int,
) -> list[Course]:
    """All courses of `STRATEGIES`, in an order that does not depend on the number of processes."""
    asked = [
        (grid, name, seed, noise[grid.name], share, known.get(grid.name))
        for grid in grids
        for name in STRATEGIES
        for seed in seeds
    ]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        return list(processes.map(replay, *zip(*asked, strict=True), chunksize=5))


if __name__ == "__main__":
    main()
