"""What a traced plan says about how a configuration will use a device: tiles, programs, bytes asked for; nothing is compiled or run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from evo.evaluation.blockwork import Access, BlockWork, count_work
from evo.tracing.compiler import largest_bytes
from evo.tracing.plan import Kernel, Launch, LaunchPlan

_TENSOR = re.compile(r"tensor<((?:\d+x)+)(?!!tt\.ptr)")
_CARRIED = re.compile(r"scf\.for .*iter_args\(.*\) -> \((.*)\)")
_STAGES = re.compile(r"tt\.num_stages = (\d+)")
WORD = 4
"""Bytes of a register; narrower elements are loaded several to one."""
FLOPS_PER_BYTE = 100.0
"""How many operations weigh as much as a byte where the launch that matters most is looked for."""


@dataclass(frozen=True)
class Facts:
    """Of the launch that does most, all at least 1 (a logarithm of each is taken), per program unless said otherwise.

    Attributes:
        programs: Of the launch.
        threads: Of a program.
        tile: Bytes of the largest tile that one instruction loads.
        round: Bytes loaded together: between one wait for memory and the next.
        stages: Rounds under way at a time, as far as the source asks for it.
        live: Words that are held at once, from accumulators and loaded tiles.
        asked: Bytes that the whole launch asks for, each as often as it does.
        m, n, k: Of the largest matrix product; 1 where there is none.
        width: Bytes of an element of its operands, which wait in shared memory: (m + n) × k × width × stages bytes.
        kept: Bytes that one loop loads and a later one loads again: faster if a cache keeps them so long.
        widest: Bytes of the largest tensor, which one block must hold in registers.
    """

    programs: float
    threads: float
    tile: float
    round: float
    stages: float
    live: float
    asked: float
    m: float
    n: float
    k: float
    width: float
    kept: float = 1.0
    widest: float = 1.0

    @property
    def logs(self) -> tuple[float, ...]:
        """Natural logarithms, in the order of the attributes."""
        return tuple(math.log(max(1.0, value)) for value in astuple(self))


def facts_of(plan: LaunchPlan) -> Facts | None:
    """None of a plan without launches."""
    launches = [step for phase in ("forward", "backward") for step in plan.steps.get(phase, ()) if isinstance(step, Launch)]
    works = [(launch, plan.kernels[launch.kernel], _work(plan.kernels[launch.kernel], launch)) for launch in launches]
    if not works:
        return None
    return _facts(*max(works, key=lambda item: math.prod(item[0].grid) * _weight(item[2])))


def _work(kernel: Kernel, launch: Launch) -> BlockWork:
    present = [item for (_, kind), item in zip(kernel.signature, launch.arguments, strict=True) if kind != "constexpr"]
    return count_work(kernel.ttir, [float(item) if isinstance(item, int | float) else None for item in present], launch.grid)


def _weight(work: BlockWork) -> float:
    return math.fsum(item.nbytes for item in work.accesses) + math.fsum(item.flops for item in work.products) / FLOPS_PER_BYTE


def _facts(launch: Launch, kernel: Kernel, work: BlockWork) -> Facts:
    loads = [item for item in work.accesses if not item.stores]
    once = math.fsum(item.elements * item.width for item in loads)
    together = math.fsum(item.nbytes for item in loads) / max(1.0, work.memory_rounds)
    product = max(work.products, key=lambda item: item.flops, default=None)
    asked_stages = [int(number) for number in _STAGES.findall(kernel.ttir)]
    stages = max(asked_stages, default=int(kernel.options.get("num_stages") or 1) if product else 1)
    held = float(sum(_words(types) for types in _CARRIED.findall(kernel.ttir)))
    if product is not None:  # a product whose result is not carried, as scores of attention, is held beside those that are
        made: dict[int, float] = {}
        for item in work.products:
            made[item.loop] = made.get(item.loop, 0.0) + item.m * item.n
        held = max(held, *made.values())
    else:
        held += min(once, together) / WORD
    warps = int(kernel.options.get("num_warps") or 4) * int(kernel.options.get("num_ctas") or 1)
    programs = math.prod(launch.grid)
    return Facts(
        programs=programs,
        threads=warps * int(kernel.options.get("warp_size") or 32),
        tile=max((item.elements * item.width for item in loads), default=1),
        round=together,
        stages=stages,
        live=held,
        asked=programs * math.fsum(item.nbytes for item in work.accesses),
        m=product.m if product else 1,
        n=product.n if product else 1,
        k=product.k if product else 1,
        width=product.width if product else 1,
        kept=_kept(loads),
        widest=largest_bytes(kernel),
    )


def _kept(loads: Sequence[Access]) -> float:
    passes: dict[int, dict[int, float]] = {}
    for item in loads:
        if item.argument is not None:
            loops = passes.setdefault(item.argument, {})
            loops[item.loop] = loops.get(item.loop, 0.0) + item.nbytes / max(1.0, item.entered)
    return math.fsum(max(loops.values()) for loops in passes.values() if len(loops) > 1)


def _words(types: str) -> int:
    """Elements of the tensors among some types that are no pointers."""
    return sum(math.prod(int(size) for size in dims.split("x") if size) for dims in _TENSOR.findall(types))
