"""A kernel that needs more memory than a real GPU has is told so, and the next one is unharmed."""

from __future__ import annotations

import pytest
import torch

from evo.evaluation.base import WorkItem
from evo.evaluation.ladder import LadderEvaluator
from evo.evaluation.replay import ReplayTier
from evo.evaluation.settings import EvaluationSettings
from evo.records import Evaluation, Status, Variant
from evo.tracing.workbench import Workbench
from tests.evo_tests import ladder_task as modules

pytestmark = pytest.mark.gpu
SCRATCH_BYTES = 60 << 30
"""Three runs of a check are held at a time."""

TOO_LARGE = modules.GOOD.replace(
    "    kernel[(rows,)]",
    f"    z = torch.empty(({SCRATCH_BYTES},), dtype=torch.int8, device=x.device)\n    z.fill_(1)\n    kernel[(rows,)]",
)


def test_a_kernel_that_is_too_large_for_the_device_harms_nobody_after_it() -> None:
    if torch.cuda.get_device_properties(0).total_memory > 3 * SCRATCH_BYTES:
        pytest.skip("this device is too large")
    settings = EvaluationSettings(tune_trials=0, start_tune_trials=0, race=(8, 16), run_deadline_s=30)
    tier = ReplayTier(settings)
    bench = Workbench(tier.capability, workers=2)
    evaluator = LadderEvaluator({modules.TASK.name: modules.TASK}, settings, tier, bench)

    def evaluate(source: str) -> Evaluation:
        item = WorkItem(1, Variant(modules.TASK.name, source), None)
        return evaluator.evaluate(item, lambda plan_hash, variant_id: None)

    try:
        assert evaluate(modules.GOOD).status is Status.PASSED
        verdict = evaluate(TOO_LARGE)
        assert verdict.status is Status.OUT_OF_RESOURCES, verdict
        assert "asked for" in verdict.message
        assert "free" in verdict.message
        assert evaluate(modules.GOOD).status is Status.PASSED
    finally:
        evaluator.close()
