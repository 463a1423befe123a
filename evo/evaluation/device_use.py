"""What a variant takes of the device on one case, and how near to the device's limits that lets it come: evidence for operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from evo.evaluation.estimate import occupancy
from evo.records import KernelUse
from evo.tasks.base import Case
from evo.tracing.compiler import Binary
from evo.tracing.plan import Launch, LaunchPlan
from evo.tracing.targets import TARGETS

MAX_KERNELS = 12
"""Launches that are described; a plan with more of them is in need of other changes than these figures suggest."""


class DeviceUse(TypedDict):
    """Fields of `evo.records.CaseResult` of the same names."""

    kernels: tuple[KernelUse, ...]
    memory_us: float
    compute_us: float


def device_use(plan: LaunchPlan, binaries: Sequence[Binary], case: Case, target: str) -> DeviceUse:
    """Resources of every launch, and the data-sheet times of the case's bytes and operations; nothing for an unknown target.

    Args:
        plan: What is launched.
        binaries: One per kernel of the plan, in its order; none where it was not compiled.
        case: Its bytes and flops.
        target: Key of `evo.tracing.targets.TARGETS`.
    """
    device = TARGETS.get(target)
    if device is None:
        return DeviceUse(kernels=(), memory_us=0.0, compute_us=0.0)
    steps = (*plan.steps.get("forward", ()), *plan.steps.get("backward", ()))
    launches = [step for step in steps if isinstance(step, Launch)] if len(binaries) == len(plan.kernels) else []
    uses = []
    for launch in launches[:MAX_KERNELS]:
        kernel, resources = plan.kernels[launch.kernel], binaries[launch.kernel].resources
        warps = int(kernel.options.get("num_warps", 4)) * int(kernel.options.get("num_ctas", 1))
        programs = math.prod(launch.grid)
        place = occupancy(max(1, programs), warps, resources.registers, resources.shared_bytes, device)
        share = place.resident_warps * device.warp_size / device.threads_per_sm
        uses.append(
            KernelUse(
                kernel.name,
                programs,
                warps,
                resources.registers,
                resources.spill_bytes,
                resources.shared_bytes,
                round(min(1.0, share), 4),
            )
        )
    memory = 1e6 * case.bytes / device.bandwidth
    compute = 1e6 * case.flops / max(device.tensor_flops, device.fp32_flops)
    return DeviceUse(kernels=tuple(uses), memory_us=memory, compute_us=compute)
