"""How the tuner's strategy compares on landscapes shaped like kernels': share of a grid until within 2 % of its best; no GPU.

`python experiments/tuning_synthetic.py [--seeds N] [--grids FOLDER]` compares strategies on analytic models of seven kernels
(steps, cliffs, infeasible regions, whims of a compiler, noise of ±1 % on what the tuner sees) and, where given, on recorded grids: JSON
files with ``space``, ``default`` and ``rows`` of [configuration, latency in microseconds per case or null].
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import math
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.evaluation import tuning
from evo.evaluation.tuning import Tuner
from evo.evaluation.tuning_rung import AHEAD, GENERATION
from evo.records import Configuration, KnobValue
from experiments.tuning.synthetic_facts import synthetic_guess

SHARE = 0.15
"""Of the valid configurations of a grid that may be timed."""
NEAR = 1.02
"""Ratio to the grid's best that counts as found."""
NOISE = 0.01
WHIM = 0.03
"""Standard deviations of logarithms: of a timing, and of what a compiler makes of a configuration."""
SHARED_BYTES = 227 * 1024
SMS = 132

Model = Callable[[Mapping[str, Any]], float | None]
Space = dict[str, tuple[KnobValue, ...]]


@dataclass(frozen=True)
class Grid:
    """A space with the true latency of each configuration; None where it is infeasible."""

    name: str
    space: Space
    default: Configuration
    latencies: Mapping[Configuration, float | None]

    @property
    def valid(self) -> list[float]:
        """Latencies of what can be run."""
        return [latency for latency in self.latencies.values() if latency is not None]

    def declared(self, seed: int) -> Configuration:
        """What an author might declare: for every seed but 0, anything that can be run."""
        valid = [configuration for configuration, latency in self.latencies.items() if latency is not None]
        return random.Random(f"declared:{seed}").choice(valid) if seed else self.default


def gemm(m: int, n: int, k: int) -> Model:
    """A tiled matrix product: waves, tile efficiency, pipelining, spills, shared memory."""

    def model(c: Mapping[str, Any]) -> float | None:
        bm, bn, bk, warps, stages, group = (c[x] for x in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "GROUP_M"))
        shared = (bm + bn) * bk * 2 * stages
        if shared > SHARED_BYTES or bm * bn / (32 * warps) > 512:
            return None
        registers = bm * bn / (32 * warps) + 40
        resident = max(1, min(SHARED_BYTES // (shared + 1024), 64 // warps, int(65536 / (min(registers, 255) * 32 * warps))))
        tiles = math.ceil(m / bm) * math.ceil(n / bn)
        waves = math.ceil(tiles / (SMS * resident)) * resident
        busy = min(1.0, resident * warps / 8) ** 0.5
        efficiency = min(1.0, (math.sqrt(bm * bn) / 128) ** 0.6) * busy * (1 - 0.35 / stages) * (1.0 if bk >= 64 else 0.92)
        spill = 1 + 0.6 * max(0.0, registers / 255 - 1)
        traffic = 1 + 0.12 * (abs(math.log2(group) - 3) / 3) * (1 if tiles > SMS else 0.2)
        return 3 + waves * (2 * bm * bn * k / (6.5e6 * efficiency)) * spill * traffic

    return model


def rows(count: int, width: int) -> Model:
    """A normalisation of rows, several rows per program, a loop over columns."""

    def model(c: Mapping[str, Any]) -> float | None:
        per, block, warps, stages = (c[x] for x in ("ROWS", "BLOCK", "num_warps", "num_stages"))
        if per * block > 65536:
            return None
        each = per * block / (32 * warps)
        width_factor = 1.0 if each >= 8 else 1.0 + 0.25 * math.log2(8 / each)
        spill = 1 + 0.8 * max(0.0, each / 128 - 1)
        passes = 1.0 if block >= width else 1.55 - 0.05 * stages
        waste = math.ceil(width / block) * block / width if block < width else 1 + 0.1 * math.log2(block / width)
        programs = math.ceil(count / per)
        tail = math.ceil(programs / SMS) * SMS / programs
        return 2 + count * width * 4 / 4.0e6 * width_factor * spill * passes * waste * min(tail, 4) ** 0.5

    return model


def attention(length: int, heads: int, dim: int) -> Model:
    """Two tiles and a pipeline, few warps per tile or spills."""

    def model(c: Mapping[str, Any]) -> float | None:
        bm, bn, warps, stages, exp2, split = (c[x] for x in ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages", "exp2", "split"))
        shared = bm * dim * 2 + 2 * bn * dim * 2 * stages
        if shared > SHARED_BYTES:
            return None
        registers = (bm * bn + bm * dim * 2) / (32 * warps) + 30
        spill = 1 + 1.2 * max(0.0, registers / 255 - 1)
        tiles = math.ceil(length / bm) * heads * split
        resident = max(1, min(SHARED_BYTES // shared, 64 // warps, int(65536 / (min(registers, 255) * 32 * warps))))
        waves = max(tiles / (SMS * resident), 1.0) if tiles > 8 * SMS else math.ceil(tiles / (SMS * resident))
        efficiency = (
            min(1.0, bm / 128) ** 0.5 * min(1.0, bn / 64) ** 0.4 * (1 - 0.25 / stages) * min(1.0, resident * warps / 8) ** 0.4
        )
        return (
            3
            + waves * resident * bm * length * dim * 4 / split / 4e6 / efficiency * spill * (1 if exp2 else 1.07)
            + 2 * (split - 1)
        )

    return model


def pointwise(count: int) -> Model:
    """A grid-stride loop: bytes in flight, waves, cache hints."""

    def model(c: Mapping[str, Any]) -> float | None:
        block, warps, unroll, hint = (c[x] for x in ("BLOCK", "num_warps", "UNROLL", "EVICT"))
        each = block / (32 * warps)
        if each * unroll > 512:
            return None
        vector = 1.0 if each >= 8 else (1.12 if each >= 4 else 1.5 if each >= 2 else 2.4)
        programs = count / (block * unroll)
        flight = min(1.0, each * unroll * warps * min(16, 64 // warps) / 512)
        tail = math.ceil(programs / (SMS * 4)) * SMS * 4 / max(programs, 1)
        spill = 1 + max(0.0, each * unroll / 96 - 1)
        return (
            2
            + count
            * 6
            / 4.2e6
            * vector
            * spill
            * min(tail, 6) ** 0.3
            / flight**0.5
            * {"": 1.0, "first": 0.985, "last": 1.03}[hint]
        )

    return model


def split_reduction(m: int, k: int) -> Model:
    """A tall reduction over split columns with a second pass over partial sums."""

    def model(c: Mapping[str, Any]) -> float | None:
        bm, bk, split, warps, atomic = (c[x] for x in ("BLOCK_M", "BLOCK_K", "SPLIT", "num_warps", "ATOMIC"))
        each = bm * bk / (32 * warps)
        if each > 512 or split * bk > k:
            return None
        programs = math.ceil(m / bm) * split
        fill = min(1.0, programs * warps / (SMS * 16))
        spill = 1 + 0.7 * max(0.0, each / 100 - 1)
        small = 1 + 0.3 * max(0.0, math.log2(8 / each))
        joining = (0.004 * split * m / 512 if atomic else 1.5 + 0.001 * split * m / 512) if split > 1 else 0.0
        return 2 + m * k * 2 / 4.0e6 / fill**0.8 * spill * small + joining

    return model


def scan(rows_: int, length: int) -> Model:
    """A scan in chunks: a chain of chunks per row against work per chunk."""

    def model(c: Mapping[str, Any]) -> float | None:
        chunk, per, warps, stages, mode = (c[x] for x in ("CHUNK", "ROWS", "num_warps", "num_stages", "MODE"))
        each = chunk * per / (32 * warps)
        if each > 256:
            return None
        steps = math.ceil(length / chunk)
        programs = math.ceil(rows_ / per)
        chain = steps * (0.5 + 0.12 * math.log2(chunk) + 0.05 * warps) / (1 + 0.25 * (stages - 1))
        waves = math.ceil(programs / (SMS * max(1, min(16, 64 // warps))))
        memory = rows_ * length * 8 / 4.0e6 * (1.6 if each < 2 else 1.15 if each < 4 else 1.0)
        factor = {"serial": 1.25, "tree": 1.0, "matmul": 1.3 if chunk < 256 else 0.95}[mode]
        return 2 + (waves * chain * factor) + memory * (1 + 0.5 * max(0.0, each / 64 - 1))

    return model


TILES = (16, 32, 64, 128, 256)
WARPS = (1, 2, 4, 8, 16)
MODELS: Mapping[str, tuple[Model, Space, dict[str, KnobValue]]] = {
    "gemm": (
        gemm(4096, 4096, 4096),
        {"BLOCK_M": TILES, "BLOCK_N": TILES, "BLOCK_K": (32, 64, 128), "num_warps": (4, 8), "num_stages": (2, 3, 4, 5), "GROUP_M": (1, 8)},
        {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2, "GROUP_M": 1},
    ),
    "thin_gemm": (
        gemm(256, 2048, 8192),
        {"BLOCK_M": TILES, "BLOCK_N": TILES, "BLOCK_K": (32, 64, 128), "num_warps": (2, 4, 8), "num_stages": (2, 3, 4), "GROUP_M": (1,)},
        {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2, "GROUP_M": 1},
    ),
    "rows": (
        rows(8192, 3000),
        {"ROWS": (1, 2, 4, 8, 16), "BLOCK": (256, 512, 1024, 2048, 4096), "num_warps": WARPS, "num_stages": (1, 2, 3)},
        {"ROWS": 1, "BLOCK": 256, "num_warps": 4, "num_stages": 1},
    ),
    "attention": (
        attention(4096, 32, 128),
        {"BLOCK_M": TILES, "BLOCK_N": TILES, "num_warps": (2, 4, 8, 16), "num_stages": (1, 2, 3, 4), "exp2": (False, True), "split": (1, 2)},  # noqa: E501
        {"BLOCK_M": 32, "BLOCK_N": 32, "num_warps": 4, "num_stages": 1, "exp2": False, "split": 1},
    ),
    "pointwise": (
        pointwise(50_000_000),
        {"BLOCK": (128, 256, 512, 1024, 2048, 4096, 8192), "num_warps": WARPS, "UNROLL": (1, 2, 4, 8), "EVICT": ("", "first", "last")},
        {"BLOCK": 256, "num_warps": 4, "UNROLL": 1, "EVICT": ""},
    ),
    "split_reduction": (
        split_reduction(512, 65536),
        {"BLOCK_M": (1, 2, 4, 8, 16, 32), "BLOCK_K": (128, 256, 512, 1024, 2048), "SPLIT": (1, 2, 4, 8, 16, 32), "num_warps": (2, 4, 8), "ATOMIC": (True, False)},  # noqa: E501
        {"BLOCK_M": 1, "BLOCK_K": 512, "SPLIT": 1, "num_warps": 4, "ATOMIC": False},
    ),
    "scan": (
        scan(2048, 16384),
        {"CHUNK": (32, 64, 128, 256, 512, 1024, 2048), "ROWS": (1, 2, 4, 8), "num_warps": (1, 2, 4, 8), "num_stages": (1, 2, 3), "MODE": ("serial", "tree", "matmul")},  # noqa: E501
        {"CHUNK": 128, "ROWS": 1, "num_warps": 4, "num_stages": 1, "MODE": "serial"},
    ),
}  # fmt: skip


def modelled_grids() -> list[Grid]:
    """The analytic models on their spaces, with whims that are always the same."""
    grids = []
    for name, (model, space, default) in MODELS.items():
        latencies: dict[Configuration, float | None] = {}
        for values in itertools.product(*space.values()):
            configuration = Configuration(dict(zip(space, values, strict=True)))
            latency = model(configuration)
            digest = hashlib.sha256(f"{name}{configuration.key}".encode()).digest()
            whim = random.Random(digest).gauss(0.0, WHIM)
            latencies[configuration] = None if latency is None else latency * math.exp(whim)
        grids.append(Grid(name, space, Configuration(default), latencies))
    return grids


def recorded_grids(folder: Path) -> list[Grid]:
    """One grid per case of each file."""
    grids = []
    for path in sorted(folder.glob("*.json")):
        data = json.loads(path.read_text())
        space = {key: tuple(choices) for key, choices in data["space"].items()}
        default = Configuration({key: data["default"][key] for key in space})
        for index in range(len(data["rows"][0][1])):
            latencies = {Configuration(row): latency[index] for row, latency in data["rows"]}
            if latencies.get(default) is not None and sum(value is not None for value in latencies.values()) >= 40:
                grids.append(Grid(f"{path.stem}:{index}", space, default, latencies))
    return grids


def trace_of(grid: Grid, seed: int, trials: int, batch: int = 1, ahead: int = 1, guided: bool = True) -> list[float]:
    """The true latency of the best choice after each timed configuration, as a ratio to the grid's best.

    Args:
        grid: Where.
        seed: Of noise, tuner and declared configuration.
        trials: Configurations to time.
        batch: Asked for at a time.
        ahead: Batches under way.
        guided: Whether it begins with a guess, where there is one.
    """
    noise, best, found = random.Random(f"{grid.name}:{seed}"), min(grid.valid), []
    guess = synthetic_guess(grid.name, grid.space, grid.declared(seed)) if guided else None
    tuner = Tuner(grid.space, grid.declared(seed), [], trials, seed, guess=guess)
    under_way = [tuner.ask_batch(batch) for _ in range(ahead)]
    while under_way:
        for configuration in under_way.pop(0):
            latency = grid.latencies.get(configuration)
            seen = None if latency is None else latency * math.exp(noise.gauss(0.0, NOISE))
            tuner.tell(configuration, seen, seen is not None)
            if tuner.best is not None and seen is not None:
                found.append((grid.latencies[tuner.best[0]] or math.inf) / best)
        if asked := tuner.ask_batch(batch):
            under_way.append(asked)
    return found


def random_trace(grid: Grid, seed: int, trials: int) -> list[float]:
    """The same for uniform choice among valid configurations after the declared one."""
    generator = random.Random(f"random:{grid.name}:{seed}")
    drawn = [grid.latencies[grid.declared(seed)], *generator.sample(grid.valid, trials - 1)]
    return [min(item for item in drawn[: place + 1] if item is not None) / min(grid.valid) for place in range(trials)]


def report(name: str, grids: Sequence[Grid], traces: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """One line per grid: medians over seeds after 8 trials, after 20, after the share, and the trials until near."""
    print(f"\n{name:24} {'valid':>6} {'after 8':>8} {'after 20':>9} {'at 15 %':>8} {'trials until 2 %':>17} {'share':>7}")
    for grid in grids:
        budget = max(1, int(SHARE * len(grid.valid)))
        runs = traces[grid.name]
        at = [statistics.median(_at(run, count) for run in runs) for count in (8, 20, budget)]
        until = statistics.median(
            next((place for place, ratio in enumerate(run, 1) if ratio <= NEAR), len(grid.valid)) for run in runs
        )
        print(
            f"{grid.name:24} {len(grid.valid):6} {at[0]:8.3f} {at[1]:9.3f} {at[2]:8.3f} {until:17.0f} {until / len(grid.valid):7.1%}"
        )
    every = [run for grid in grids for run in traces[grid.name]]
    means = [math.exp(statistics.fmean(math.log(_at(run, count)) for run in every)) for count in (8, 20, 40)]
    print(f"geometric means after 8, 20, 40: {means[0]:.3f} {means[1]:.3f} {means[2]:.3f}")


def _at(run: Sequence[float], count: int) -> float:
    return run[min(count, len(run)) - 1]


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=7)
    parser.add_argument("--grids", type=Path)
    parser.add_argument("--limit", type=int, default=60, help="trials at most")
    chosen = parser.parse_args()
    grids = [*modelled_grids(), *(recorded_grids(chosen.grids) if chosen.grids else [])]
    trials = {grid.name: min(chosen.limit, max(40, int(SHARE * len(grid.valid)))) for grid in grids}
    seeds = range(chosen.seeds)
    report("random", grids, {g.name: [random_trace(g, seed, trials[g.name]) for seed in range(20)] for g in grids})
    every = tuning.TPE_EVERY
    for name, period, batch, ahead, guided in (
        ("as in a climb", every, GENERATION, AHEAD, True),
        ("without a guess", every, GENERATION, AHEAD, False),
        ("one by one", every, 1, 1, True),
        ("batches of 4", every, 4, 1, True),
        ("surrogate alone", 10**9, 1, 1, True),
        ("TPE alone", 1, 1, 1, False),
    ):
        tuning.TPE_EVERY = period
        report(name, grids, {g.name: [trace_of(g, seed, trials[g.name], batch, ahead, guided) for seed in seeds] for g in grids})
    tuning.TPE_EVERY = every


if __name__ == "__main__":
    main()
