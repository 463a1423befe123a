"""A guess of how fast configurations are, from a few traces and before anything is compiled: a mean for the surrogate to correct.

A probe changes one knob of the declared configuration and is traced on a CPU; facts of all others follow by adding logarithms,
since tiles and grids are products of knobs. Each term of the guess is a loss that GPUs are known for, as a logarithm of latency:
narrow accesses, spilled registers, too few bytes in flight (Little's law), SMs that idle in the last wave, bytes asked for again, rows
that leave the cache between two passes, plain loads that take the way through shared memory, tiles that tensor cores or pipelines cannot
make full use of. Constants are round: the surrogate learns from trials how much each term counts.
It shares nothing with `evo.evaluation.estimate`, which reads compiled code, but for the count of what a program does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from evo.evaluation.tuning_facts import Facts, facts_of
from evo.evaluation.tuning_space import Codes, Floats, KnobSpace
from evo.records import Configuration
from evo.tracing.compiler import MAX_BYTES_PER_THREAD
from evo.tracing.plan import LaunchPlan
from evo.tracing.targets import TARGETS, Target

PROBES = 24
"""Traces at most; each takes some hundredths of a second."""
WIDEST = 16.0
"""Bytes that a thread can load at once."""
MEMORY_LATENCY_S = 700e-9
REGISTERS = 255.0
OVERHEAD_REGISTERS = 28.0
"""Of addresses, masks and loops."""
RESERVED_SHARED_BYTES = 1024.0
WORST = 1.5
"""Log ratio beyond which a guess says no more than "bad"."""
CACHE_SHARE = 0.5
"""Part of the last-level cache that rows which are read twice can count on: stores and other tensors pass through it too."""
UNFIT = 0.05
"""Probability that what does not fit by this count can be run all the same."""
TERMS = ("narrow", "spills", "flight", "idle", "asked", "evicted", "staged", "tensor")


def probes(space: KnobSpace) -> list[Configuration]:
    """The declared configuration, and others in which one knob has another value: the outermost, and the middle, of amounts."""
    default = space.codes(space.default)
    found = [space.default]
    for knob, count in enumerate(space.counts):
        wanted = {0, 1, count // 2, count - 1} if space.ruled[knob] else {0, count // 2, count - 1}
        for code in sorted(wanted if space.ordered[knob] else range(min(count, 8))):
            if code != default[knob]:
                found.append(space.configuration((*default[:knob], code, *default[knob + 1 :])))
    return list(dict.fromkeys(found))[:PROBES]


class Prior:
    """Guesses for a whole space.

    Args:
        space: Of the knobs.
        facts: Of probes, the declared configuration among them; probes that could not be traced are left out.
        target: Whose limits count.

    Raises:
        ValueError: The declared configuration is missing.
    """

    def __init__(self, space: KnobSpace, facts: Mapping[Configuration, Facts], target: Target) -> None:
        if space.default not in facts:
            raise ValueError("the facts of the declared configuration are missing")
        self._target = target
        self._base = np.asarray(facts[space.default].logs)
        default = space.codes(space.default)
        self._changes = [self._of_knob(space, knob, default, facts) for knob in range(len(space.names))]
        asked = list(Facts.__dataclass_fields__).index("asked")
        self._least_asked = float(self._base[asked] + sum(changes[:, asked].min() for changes in self._changes))

    def terms(self, rows: Sequence[Codes]) -> Floats:
        """Per configuration and term of `TERMS`, a logarithm of a latency ratio, at least 0."""
        facts = self._facts(rows)
        found = np.stack([np.broadcast_to(term, (len(rows),)) for term in _terms(facts, self._least_asked, self._target)], axis=1)
        return np.minimum(found, WORST)

    def fits(self, rows: Sequence[Codes]) -> Floats:
        """Per configuration, a guess of the probability that it can be run: small where loads outgrow shared memory, or a tensor
        the registers."""
        facts = self._facts(rows)
        widest = _amount(facts["widest"] - facts["threads"])
        return np.where((_staged(facts) > self._target.max_shared_bytes) | (widest > MAX_BYTES_PER_THREAD), UNFIT, 1.0)

    def _facts(self, rows: Sequence[Codes]) -> dict[str, Floats]:
        """Logarithms by name."""
        table = np.asarray(rows, dtype=np.int64).reshape(len(rows), len(self._changes))
        logs = np.tile(self._base, (len(rows), 1))
        for knob, changes in enumerate(self._changes):
            logs = logs + changes[table[:, knob]]
        return dict(zip(Facts.__dataclass_fields__, np.maximum(logs, 0.0).T, strict=True))

    def _of_knob(self, space: KnobSpace, knob: int, default: Codes, facts: Mapping[Configuration, Facts]) -> Floats:
        """Per choice of a knob, what it adds to the logarithms; between probes in proportion to the knob's own."""
        known: dict[int, Floats] = {}
        for code in range(space.counts[knob]):
            probe = space.configuration((*default[:knob], code, *default[knob + 1 :]))
            if probe in facts:
                known[code] = np.asarray(facts[probe].logs) - self._base
        changes = np.zeros((space.counts[knob], len(self._base)))
        if space.ordered[knob]:
            first = 1 if space.ruled[knob] else 0  # a rule's own value lies on no scale
            amounts = np.asarray([math.log(max(float(choice), 0.5)) for choice in space.choices[space.names[knob]]])
            inner = [code for code in sorted(known) if code >= first]
            for field in range(len(self._base)):
                if inner:
                    changes[:, field] = np.interp(amounts, amounts[inner], [known[code][field] for code in inner])
        for code, change in known.items():
            changes[code] = change
        return changes


def guessed(space: KnobSpace, plans: Mapping[Configuration, LaunchPlan]) -> Prior | None:
    """A guess from the plans of probes; None where the declared configuration has none, launches nothing or is for an unknown device."""
    facts = {configuration: found for configuration, plan in plans.items() if (found := facts_of(plan)) is not None}
    if space.default not in facts or plans[space.default].target not in TARGETS:
        return None
    return Prior(space, facts, TARGETS[plans[space.default].target])


def _terms(facts: Mapping[str, Floats], least_asked: float, target: Target) -> tuple[Floats, ...]:
    programs, threads, tile, together, stages, live, kept, m, n, k = (
        _amount(facts[name]) for name in ("programs", "threads", "tile", "round", "stages", "live", "kept", "m", "n", "k")
    )
    multiplies = facts["k"] > 0
    registers = live / threads + OVERHEAD_REGISTERS
    resident = _resident(threads, registers, _staged(facts), target)
    per_sm = np.clip(programs / target.multiprocessors, 1.0 / target.multiprocessors, resident)
    narrow = 0.12 * np.maximum(0.0, np.log2(WIDEST / (tile / threads)))
    spills = 0.8 * np.maximum(0.0, np.log2(registers / (0.8 * REGISTERS)))
    wanted = MEMORY_LATENCY_S * target.bandwidth / target.multiprocessors
    # Triton gives plain loads a stage less than asked for: n stages are n - 1 rounds in shared memory.
    flight = np.where(multiplies, 0.0, 0.5 * np.log1p(wanted / (per_sm * together * np.maximum(1.0, stages - 1))))
    per_wave = programs / target.multiprocessors
    idle = 0.6 * np.log(np.ceil(per_wave) / per_wave)
    asked = 0.35 * np.maximum(0.0, facts["asked"] - least_asked)
    # Rows that all resident programs keep for a second pass: what the cache cannot hold comes from memory again.
    rows = per_sm * target.multiprocessors * kept
    once = np.maximum(1.0, np.exp(facts["asked"]) - programs * kept)
    misses = np.maximum(0.0, 1 - CACHE_SHARE * target.l2_bytes / rows)
    evicted = np.log1p(misses * programs * kept / once)
    # A barrier a round, and registers are filled by way of shared memory.
    staged = np.where(~multiplies & (stages > 1), 0.1, 0.0)
    tensor = np.where(multiplies, _tensor(threads / target.warp_size, m, n, k, stages, per_sm), 0.0)
    return narrow, spills, flight, idle, asked, evicted, staged, tensor


def _amount(logs: Floats) -> Floats:
    """Rounded, so that what is compared with a limit does not miss it by the error of a logarithm."""
    found: Floats = np.exp(logs).round(6)
    return found


def _staged(facts: Mapping[str, Floats]) -> Floats:
    """Bytes of shared memory that operands of products wait in, and what plain loops load ahead."""
    m, n, k, width, stages, together = (_amount(facts[name]) for name in ("m", "n", "k", "width", "stages", "round"))
    plain = together * (stages - 1)
    found: Floats = np.where(facts["k"] > 0, (m + n) * k * width * stages, plain)
    return found


def _resident(threads: Floats, registers: Floats, shared: Floats, target: Target) -> Floats:
    """Programs that one SM holds."""
    rounded = np.ceil(np.minimum(registers, REGISTERS) / 8) * 8
    limits = [
        np.full_like(threads, target.blocks_per_sm),
        target.threads_per_sm // threads,
        target.registers_per_sm // (rounded * threads),
    ]
    if target.shared_per_sm:
        limits.append(target.shared_per_sm // (shared + RESERVED_SHARED_BYTES))
    found: Floats = np.maximum(1.0, np.minimum.reduce(limits))
    return found


def _tensor(warps: Floats, m: Floats, n: Floats, k: Floats, stages: Floats, per_sm: Floats) -> Floats:
    """Tiles that feed tensor cores badly, loops that wait for their operands, SMs with too few warps."""
    small = 0.15 * np.maximum(0.0, np.log2(128 * 128 / (m * n))) + 0.1 * np.maximum(0.0, np.log2(64 / n))
    single = 0.3 * ((m < 64) | (warps < 4))
    # An instruction takes 16 rows a warp: more warps than that share rows, read operands twice and reduce across warps.
    shared = 0.3 * np.maximum(0.0, np.log2(16 * warps / m))
    short = 0.08 * np.maximum(0.0, np.log2(64 / k))
    waiting = 0.3 / stages
    few = 0.25 * np.maximum(0.0, np.log2(8 / (per_sm * warps)))
    found: Floats = small + single + shared + short + waiting + few
    return found
