"""Sorts the opcodes of a compiled kernel (SASS or AMDGCN, static counts) into the units that execute them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_SASS_BITS = re.compile(r"\.(?:[US])?(8|16|32|64|128)\b")
_DWORDS = re.compile(r"dwordx?(\d?)|b(8|16|32|64|96|128)$|(ubyte|sbyte|byte)|(short)")
_MATRIX = ("HMMA", "HGMMA", "QGMMA", "QMMA", "IMMA", "IGMMA", "DMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")
_WARPGROUP = ("HGMMA", "QGMMA", "IGMMA", "UTCHMMA", "UTCQMMA", "UTCIMMA")
_NOT_ISSUED = ("NOP",)


@dataclass(frozen=True)
class InstructionMix:
    """Static counts of one warp's instructions.

    Attributes:
        loads, stores: Global accesses by bytes per thread → count (TMA copies are not among them).
        asynchronous: Copies that need no registers: cp.async or TMA.
        local: Accesses to local memory, that is spills.
        shared_bytes: Bytes per thread of all shared-memory accesses.
        special: Special functions (exponentials, reciprocals, roots).
        matrix, warpgroup: Tensor-core instructions, and those among them of the newer kind that feeds from shared memory.
        barriers: Barriers of the block.
        issued: All instructions.
    """

    loads: Mapping[int, int]
    stores: Mapping[int, int]
    asynchronous: int
    local: int
    shared_bytes: float
    special: int
    matrix: int
    warpgroup: int
    barriers: int
    issued: int

    @property
    def load_bytes(self) -> float:
        """Bytes one thread asks for when it executes every global load once."""
        return float(sum(width * count for width, count in self.loads.items()))

    def global_cycles(self, bytes_per_lane_cycle: float) -> float:
        """SM cycles of the load/store unit for one warp's global accesses; a narrow access wastes what it does not fill.

        Args:
            bytes_per_lane_cycle: Bytes that the unit moves per cycle and lane.
        """
        accesses = [*self.loads.items(), *self.stores.items()]
        return sum(count * max(width, 4) / bytes_per_lane_cycle for width, count in accesses) + 2.0 * self.local

    def matrix_efficiency(self, generation: int) -> float:
        """Share of the data-sheet rate that the instruction kind reaches: from Hopper (9) on only the newer kind is fast."""
        if self.warpgroup or generation < 9:
            return 0.8
        return 0.6 if generation == 9 else 0.3


def instruction_mix(counts: Mapping[str, int]) -> InstructionMix:
    """Sorts opcodes; an empty mapping gives an empty mix."""
    loads: dict[int, int] = {}
    stores: dict[int, int] = {}
    number = {"asynchronous": 0, "local": 0, "special": 0, "matrix": 0, "warpgroup": 0, "barriers": 0, "issued": 0}
    shared = 0.0
    for opcode, count in counts.items():
        family = opcode.partition(".")[0]
        if family in _NOT_ISSUED:
            continue
        number["issued"] += count
        if family in ("LDG", "LD", "LDGSTS") or opcode.startswith(("global_load", "buffer_load", "flat_load")):
            loads[_width(opcode)] = loads.get(_width(opcode), 0) + count
        elif family in ("STG", "ST", "ATOMG", "RED", "REDG") or opcode.startswith(("global_", "buffer_", "flat_")):
            stores[_width(opcode)] = stores.get(_width(opcode), 0) + count
        elif family in ("LDL", "STL") or opcode.startswith("scratch_"):
            number["local"] += count
        elif family in ("LDS", "STS", "LDSM", "STSM") or opcode.startswith("ds_"):
            shared += count * (16 if family in ("LDSM", "STSM") else _width(opcode))
        elif family == "MUFU" or opcode.startswith(("v_exp", "v_rcp", "v_rsq", "v_log", "v_sqrt", "v_sin", "v_cos")):
            number["special"] += count
        elif family in _MATRIX or opcode.startswith("v_mfma"):
            number["matrix"] += count
            number["warpgroup"] += count if family in _WARPGROUP else 0
        elif family in ("BAR", "SYNCS") or opcode == "s_barrier":
            number["barriers"] += count
        if family in ("LDGSTS", "UTMALDG", "UBLKCP"):
            number["asynchronous"] += count
    return InstructionMix(loads=loads, stores=stores, shared_bytes=shared, **number)


def _width(opcode: str) -> int:
    """Bytes per thread."""
    if opcode[0].isupper():
        match = _SASS_BITS.search(opcode)
        return int(match.group(1)) // 8 if match else 4
    found = _DWORDS.search(opcode)
    if found is None:
        return 4
    dwords, bits, byte, short = found.groups()
    if bits:
        return int(bits) // 8
    return 1 if byte else 2 if short else 4 * int(dwords or 1)
