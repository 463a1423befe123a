"""No false alarms: every starting kernel and every rewrite of it passes under every variation that its task allows."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch

from evo.evaluation.draws import suitable_variations
from evo.evaluation.inputs import applicable_variations, make_inputs
from evo.evaluation.judge import Judge
from evo.evaluation.oracle import flatten_outputs
from evo.knobs import read_knobs
from evo.records import Failure
from evo.registry import find_operators
from evo.tasks.base import Task
from evo.tasks.draws import Draw, Variation
from evo.tasks.loading import builtin_tasks, load_task, starting_sources
from operators.rewrite.base import Rewrite
from operators.source import NotApplicableError, read_source
from tests.evo_tests.interpreted_draws import flattened, run_interpreted

SMALL = {"BLOCK": 64, "BLOCK_M": 16, "BLOCK_N": 16, "BLOCK_K": 16, "ROWS": 2, "PROGRAMS": 2}


def variants(task: Task) -> list[str]:
    """Starting kernels, and what each rewrite makes of each of its sites."""
    found = dict.fromkeys(starting_sources(task))
    for start in list(found):
        for operator in find_operators().values():
            if issubclass(operator, Rewrite):
                with contextlib.suppress(NotApplicableError):
                    for site in operator().sites(read_source(start)):
                        with contextlib.suppress(NotApplicableError):
                            found[site.apply().code] = None
    return list(found)


def all_draws(task: Task) -> list[tuple[str, Draw]]:
    """Every small case under every variation."""
    return [
        (case.name, Draw(11 + index, variation))
        for case in task.small_cases
        for index, variation in enumerate((Variation.PLAIN, *suitable_variations(task, case, False)))
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", builtin_tasks())
def test_every_rewrite_passes_under_every_variation(name: str, tmp_path: Path) -> None:
    task, judge = load_task(name), Judge()
    draws = all_draws(task)
    jobs = []
    for source in variants(task):
        default = read_knobs(source).default
        small = {knob: SMALL.get(knob, value) for knob, value in default.items()}
        given = [[case, draw.seed, draw.variation.value] for case, draw in draws]
        for configuration in [default] if small == default else [default, small]:
            jobs.append({"task": name, "source": source, "configuration": dict(configuration), "draws": given})
    alarms = []
    for job, results in zip(jobs, run_interpreted(jobs, tmp_path), strict=True):
        for (case, draw), (returned, _) in zip(draws, results, strict=True):
            assert not isinstance(returned, str), returned
            verdict = judge.judge(task, task.case(case), draw, flattened(task, returned))
            if isinstance(verdict, Failure):
                alarms.append(f"{verdict.message}\n{job['configuration']}\n{job['source']}")
    assert not alarms, f"{len(alarms)} of {len(jobs) * len(draws)}, the first:\n{alarms[0]}"


@pytest.mark.gpu
@pytest.mark.parametrize("name", builtin_tasks())
def test_starting_kernels_pass_on_a_gpu_under_every_variation(name: str, tmp_path: Path) -> None:
    from evo.tracing.trace_child import load_module

    task, judge = load_task(name), Judge("cuda")
    with contextlib.chdir(tmp_path):
        for source in starting_sources(task):
            entry = getattr(load_module(source, {}), task.entry)
            for case in (*task.small_cases, *task.training_cases[:2]):
                for index, variation in enumerate((Variation.PLAIN, *applicable_variations(task, case))):
                    draw = Draw(11 + index, variation)
                    inputs = make_inputs(task, case, draw.seed, "cuda", variation)
                    returned = entry(*inputs.arguments)
                    torch.cuda.synchronize()
                    mutated = [inputs.arguments[position] for position in task.mutates]
                    verdict = judge.judge(task, case, draw, flatten_outputs(returned, mutated))
                    assert not isinstance(verdict, Failure), verdict.message
