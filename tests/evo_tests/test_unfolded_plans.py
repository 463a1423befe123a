"""A kernel whose autotuner was unfolded launches, in each listed configuration, exactly what the autotuner would."""

from __future__ import annotations

import asyncio

import numpy as np

from evo.knobs import read_knobs
from evo.records import Configuration, Proposal, Variant
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer
from operators.base import Context, Parent
from operators.rewrite.unfold_autotune import UnfoldAutotune
from tests.evo_tests.awkward_kernels import TASKS, source_of


def test_the_plans_of_both_forms_are_equal() -> None:
    task = TASKS["autotuned_split_k"]
    source, case = source_of(task), task.training_cases[0]
    context = Context(task.name, "", task.entry, "", frozenset(), "cuda:90", "3.9")
    parent = Parent(Variant(task.name, source))
    made = asyncio.run(UnfoldAutotune().propose((parent,), context, np.random.default_rng(0)))
    assert isinstance(made, Proposal)
    knobs = read_knobs(made.source)
    tracer = Tracer("cuda:90")
    try:
        for number, configuration in enumerate((knobs.default, *knobs.hints)):
            autotuned = tracer.trace(source, task, case, Configuration({"autotune:matvec": number}))
            unfolded = tracer.trace(made.source, task, case, configuration)
            assert isinstance(autotuned, LaunchPlan), autotuned
            assert isinstance(unfolded, LaunchPlan), unfolded
            assert unfolded.plan_hash == autotuned.plan_hash
    finally:
        tracer.close()
