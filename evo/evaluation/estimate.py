"""A modelled latency from compiled plans, for machines without a GPU. It orders variants; it is never a measured figure.

Per launch, with P programs of W warps, B = programs one SM holds at a time (limits of registers, shared memory, warps and
programs), the model takes the time of each unit as if it worked alone and joins them by a norm of exponent `OVERLAP`, since
units overlap well but not perfectly:

* device memory: bytes / (bandwidth × share of Little's law's bytes in flight that the resident warps keep up). Bytes of a
  tensor count once; reading it again counts where it cannot have stayed in the last-level cache. Bytes in flight are those of
  the load instructions of a thread as compiled, and the shared memory of asynchronous copies, so narrow loads, low occupancy
  and grids below the number of SMs are slow;
* last-level cache: all bytes the programs ask for (so small tiles of a matrix product, second passes and spills cost), over
  `L2_BYTES_PER_CYCLE` per SM;
* load/store unit, shared memory, special functions and issue slots: instructions of the SASS by opcode and width, times how
  often the average one runs (`evo.evaluation.blockwork`, from trip counts in the TTIR), over what an SM does per cycle;
* tensor cores: flops of the tiles over the data-sheet rate of the instruction the compiler chose, less for small tiles;
* latency: waves × the chain of memory rounds, barriers and reductions one program cannot overlap with itself.

Throughputs suffer from the idle SMs of the last wave. Each launch, fill, copy and torch operator adds `LAUNCH_US`; fills, copies
and operators move their own bytes. Sources: Little's law; Williams et al., Roofline (2009); NVIDIA's CUDA programming guide,
tables of arithmetic throughput and occupancy; Jia et al., Dissecting the Volta architecture (2018) and Luo et al., Benchmarking the
Hopper architecture (2024) for latencies and widths, rounded.

What it cannot see: bank conflicts, coalescing across threads, tile order and its cache hits (GROUP_M), warp specialisation,
clocks and power, the schedule the assembler made. Masks cost only by what they do to instructions. On AMD opcodes are counted more
coarsely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evo.evaluation.blockwork import BlockWork, count_work
from evo.evaluation.instructions import InstructionMix, instruction_mix
from evo.tasks.base import Case
from evo.tracing.compiler import Binary
from evo.tracing.plan import VALUE_DTYPES, Copy, Fill, Kernel, Launch, LaunchPlan, Operator, Value
from evo.tracing.targets import Target

LAUNCH_US = 2.0
OVERLAP = 3.0
MEMORY_LATENCY_S = 650e-9
MEMORY_EFFICIENCY = 0.92
L2_BYTES_PER_CYCLE = 32.0
SHARED_BYTES_PER_CYCLE = 128.0
LSU_BYTES_PER_CYCLE = 64.0
SCHEDULERS = 4
SPECIAL_LANES = 16
RESERVED_SHARED_BYTES = 1024
CACHE_SHARE = 0.5
"""Part of the last-level cache that one kernel's reuse can count on."""
FAR_MISSES = 0.1
"""Share of repeated reads by other programs that miss a cache too small for the tensor."""
BARRIER_CYCLES, REDUCTION_CYCLES, LOCAL_CYCLES = 30.0, 60.0, 8.0


@dataclass(frozen=True)
class Occupancy:
    """Programs of one SM: `resident` at a time, `busy` SMs, `waves` until all are done, `imbalance` ≥ 1 of the last wave."""

    warps: int
    resident: int
    busy: int
    waves: int
    imbalance: float

    @property
    def resident_warps(self) -> int:
        """Warps of one SM."""
        return self.resident * self.warps


def modelled_latency_us(plan: LaunchPlan, binaries: Sequence[Binary], case: Case, target: Target) -> float:
    """Modelled device latency of one call, forward and backward, in microseconds.

    Args:
        plan: What is launched.
        binaries: One per kernel of the plan, in its order, compiled with instruction counts.
        case: Its `bytes` and `flops` bound the result from below: no model may promise more than the device can.
        target: Whose data-sheet figures to use.

    Raises:
        ValueError: The binaries are not those of the plan.
    """
    if [binary.kernel_hash for binary in binaries] != [kernel.kernel_hash for kernel in plan.kernels]:
        raise ValueError(f"{len(binaries)} binaries do not belong to the plan's {len(plan.kernels)} kernels")
    total = 0.0
    for step in (*plan.steps.get("forward", ()), *plan.steps.get("backward", ())):
        if isinstance(step, Launch):
            kernel = plan.kernels[step.kernel]
            total += LAUNCH_US + 1e6 * kernel_seconds(plan, step, kernel, binaries[step.kernel], target)
        elif isinstance(step, Fill | Copy | Operator):
            total += LAUNCH_US + 1e6 * _torch_bytes(step, plan) / (target.bandwidth * MEMORY_EFFICIENCY)
    return max(total, 1e6 * least_seconds(case, target), LAUNCH_US)


def least_seconds(case: Case, target: Target) -> float:
    """What no kernel can be faster than, however its text is read: the case's bytes through the caches, its operations on tensor cores."""
    # Data that was just written may still lie in the cache: only what does not fit must come from memory.
    memory = max(0, case.bytes - target.l2_bytes) / target.bandwidth
    cache = case.bytes / (L2_BYTES_PER_CYCLE * target.multiprocessors * target.clock_hz)
    return max(memory, cache, case.flops / (2 * max(target.tensor_flops, target.fp32_flops)))


def occupancy(programs: int, num_warps: int, registers: int, shared_bytes: int, target: Target) -> Occupancy:
    """How programs fill the device."""
    threads = num_warps * target.warp_size
    rounded = max(16, math.ceil(registers / 8) * 8)
    limits = [target.blocks_per_sm, target.threads_per_sm // threads, target.registers_per_sm // (rounded * threads)]
    if target.shared_per_sm:
        limits.append(target.shared_per_sm // (shared_bytes + RESERVED_SHARED_BYTES))
    most = max(1, min(limits))
    sms = target.multiprocessors
    waves = math.ceil(programs / (sms * most))
    # Within a wave programs run side by side; what counts is the SM with the most of them.
    imbalance = math.ceil(programs / sms) * sms / programs
    return Occupancy(num_warps, min(most, math.ceil(programs / sms)), min(sms, programs), waves, imbalance)


def kernel_seconds(plan: LaunchPlan, launch: Launch, kernel: Kernel, binary: Binary, target: Target) -> float:
    """Modelled seconds of one launch, without its overhead."""
    programs = math.prod(launch.grid)
    if programs == 0:
        return 0.0
    resources = binary.resources
    warps = int(kernel.options.get("num_warps", 4)) * int(kernel.options.get("num_ctas", 1))
    place = occupancy(programs, warps, resources.registers, resources.shared_bytes, target)
    mix = instruction_mix(resources.instructions)
    arguments = [item for (_, kind), item in zip(kernel.signature, launch.arguments, strict=True) if kind != "constexpr"]
    values = [_pointed(item, plan) for item in arguments]
    work = _work(kernel, launch, arguments, values, programs)
    device_bytes, cache_bytes = _traffic(work, values, programs, place, target)
    repetition = max(1.0, work.repetition / _unrolling(work, mix, warps * target.warp_size))
    spilled = mix.local * repetition * warps * programs * 4 * target.warp_size / 2
    stages = int(kernel.options.get("num_stages", 1) or 1)
    per_sm = place.imbalance * programs / target.multiprocessors / target.clock_hz  # SM cycles of one program → seconds
    runs = repetition * warps
    times = (
        device_bytes / (target.bandwidth * MEMORY_EFFICIENCY * _share_in_flight(mix, place, resources.shared_bytes, target)),
        (cache_bytes + spilled) / (L2_BYTES_PER_CYCLE * target.multiprocessors * target.clock_hz),
        per_sm * runs * mix.global_cycles(LSU_BYTES_PER_CYCLE / target.warp_size),
        per_sm * runs * mix.shared_bytes * target.warp_size / SHARED_BYTES_PER_CYCLE,
        per_sm * runs * mix.special * target.warp_size / SPECIAL_LANES,
        per_sm * runs * mix.issued / SCHEDULERS,
        _matrix_seconds(work, mix, place, programs, target),
        place.waves * _chain_cycles(work, mix, stages, repetition, warps, target) / target.clock_hz,
    )
    return float(math.fsum(time**OVERLAP for time in times) ** (1 / OVERLAP))


def _unrolling(work: BlockWork, mix: InstructionMix, threads: int) -> float:
    """How often the assembler wrote a loop's body out: loads as compiled over loads as written, in bytes.

    With asynchronous copies the surplus is the prologue of the pipeline, which holds loads alone.
    """
    written = sum(access.elements * access.width for access in work.accesses if not access.stores)
    return max(1.0, mix.load_bytes * threads / written) if written and not mix.asynchronous else 1.0


def _work(kernel: Kernel, launch: Launch, arguments: Sequence[Any], values: Sequence[Value | None], programs: int) -> BlockWork:
    scalars = [float(item) if isinstance(item, int | float) else None for item in arguments]
    work = count_work(kernel.ttir, scalars, launch.grid)
    guesses = [
        _bytes(value) / (programs * access.nbytes)
        for access in work.accesses
        if access.in_unknown_loop and access.argument is not None and access.argument < len(values)
        if (value := values[access.argument]) is not None and access.nbytes
    ]
    # A loop without known bounds is taken to walk once through the largest tensor it touches.
    guess = max(guesses, default=1.0)
    return count_work(kernel.ttir, scalars, launch.grid, guess) if guess > 1 else work


def _traffic(
    work: BlockWork, values: Sequence[Value | None], programs: int, place: Occupancy, target: Target
) -> tuple[float, float]:
    """Bytes from and to device memory, and bytes asked of the last-level cache."""
    device = cache = 0.0
    asked: dict[tuple[int | None, bool], list[float]] = {}
    for access in work.accesses:
        value = values[access.argument] if access.argument is not None and access.argument < len(values) else None
        wanted = access.nbytes * programs
        # A masked tile overhangs by less than its own size in each dimension: what is off is not moved.
        if value is not None and access.masked and _bytes(value) < wanted < 2 * _bytes(value):
            wanted = float(_bytes(value))
        asked.setdefault((access.argument, access.stores), []).append(wanted)
    room = CACHE_SHARE * target.l2_bytes
    for (argument, _), wants in asked.items():
        known = values[argument] if argument is not None and argument < len(values) else None
        total = math.fsum(wants)
        once = min(total, float(_bytes(known)) if known is not None else total)
        again = total - once
        resident = once / programs * place.resident * place.busy
        if once <= room:
            misses = 0.0
        elif len(wants) > 1 and again <= once * (len(wants) - 1) * 1.01:  # later passes of the same program
            misses = 0.0 if resident <= room else 1.0
        else:
            misses = FAR_MISSES
        device += once + misses * again
        cache += total
    return device, cache


def _share_in_flight(mix: InstructionMix, place: Occupancy, shared_bytes: int, target: Target) -> float:
    needed = target.bandwidth * MEMORY_LATENCY_S
    per_sm = place.resident_warps * target.warp_size * min(mix.load_bytes, 128.0)
    if mix.asynchronous:
        per_sm += place.resident * shared_bytes * 2 / 3
    supply = max(per_sm * place.busy, 1.0) / needed
    return supply / math.sqrt(1 + supply**2)


def _matrix_seconds(work: BlockWork, mix: InstructionMix, place: Occupancy, programs: int, target: Target) -> float:
    seconds = 0.0
    for product in work.products:
        if mix.matrix == 0:  # not on tensor cores
            rate = target.fp32_flops
        else:
            rate = target.tensor_flops * mix.matrix_efficiency(target.capability[0]) * 2 / max(1, product.width)
        tile = min(1.0, math.sqrt(product.m * product.n) / 128) ** 0.5
        fed = min(1.0, place.resident_warps / 8) ** 0.5
        seconds += product.flops * programs * place.imbalance / (rate * tile * fed)
    return seconds


def _chain_cycles(work: BlockWork, mix: InstructionMix, stages: int, repetition: float, warps: int, target: Target) -> float:
    latency = MEMORY_LATENCY_S * target.clock_hz
    rounds = 1 + (work.memory_rounds - 1) / max(1, stages - 1 if mix.asynchronous else 1)
    barriers = mix.barriers * repetition * BARRIER_CYCLES * (1 + math.log2(max(1, warps)) / 4)
    return latency * rounds + barriers + work.reductions * REDUCTION_CYCLES + mix.local * repetition * LOCAL_CYCLES


def _pointed(argument: Any, plan: LaunchPlan) -> Value | None:
    if not isinstance(argument, Mapping):
        return None
    inner = argument.get("descriptor", argument)
    index: int = inner["value"]
    return plan.values[index]


def _bytes(value: Value) -> int:
    return math.prod(value.shape) * VALUE_DTYPES[value.dtype]


def _torch_bytes(step: Fill | Copy | Operator, plan: LaunchPlan) -> int:
    if isinstance(step, Fill):
        touched = [step.value]
    elif isinstance(step, Copy):
        touched = [step.target, step.source]
    else:
        references = [
            item["value"] for item in (*step.arguments, *step.keywords.values()) if isinstance(item, Mapping) and "value" in item
        ]
        touched = [*references, *(result for result in step.results if result is not None)]
    return sum(_bytes(plan.values[index]) for index in touched)
