"""Memory for the gate: undefined bytes are poisoned and every buffer lies between guard bands that must stay untouched.

Bands and poison differ between repeats of a run. What a kernel writes beyond a buffer changes a band whatever value it writes, and what
it *reads* beyond a buffer, or from memory that nothing wrote, makes repeats differ where it reaches an output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

GUARD_BYTES = 4096


@dataclass(frozen=True)
class Surroundings:
    """The byte that guard bands are made of, and the one that undefined memory is."""

    bands: int
    poison: int


NAN, LARGE, SMALL = 0xFF, 0x7B, 0xA5
"""0xFF bytes are NaN in every floating-point format and -1 in integers; 0x7B bytes are large and finite (61,280 in float16, 1.3e36 in
float32 and bfloat16); 0xA5 bytes are small, negative numbers."""

SURROUNDINGS = (Surroundings(NAN, NAN), Surroundings(LARGE, SMALL), Surroundings(SMALL, LARGE))
"""Of the repeats of a run, in order."""


class GuardedMemory:
    """Allocates storages with guard bands and remembers them; see `evo.evaluation.runner.Memory`."""

    def __init__(self, device: torch.device, surroundings: Surroundings = SURROUNDINGS[0]) -> None:
        self._device = device
        self.surroundings = surroundings
        self._blocks: list[tuple[torch.Tensor, int]] = []

    def allocate(self, nbytes: int, index: int = 0) -> tuple[torch.UntypedStorage, int]:
        """A poisoned storage; the usable part starts after the first band."""
        block = torch.full((nbytes + 2 * GUARD_BYTES,), self.surroundings.poison, dtype=torch.uint8, device=self._device)
        block[:GUARD_BYTES] = self.surroundings.bands
        block[GUARD_BYTES + nbytes :] = self.surroundings.bands
        self._blocks.append((block, nbytes))
        return block.untyped_storage(), GUARD_BYTES

    def violations(self) -> int:
        """How many bands were written to."""
        if not self._blocks:
            return 0
        pieces = [piece for block, nbytes in self._blocks for piece in (block[:GUARD_BYTES], block[GUARD_BYTES + nbytes :])]
        # One answer for all bands: each would wait for the device.
        return int((torch.stack(pieces) != self.surroundings.bands).any(dim=1).sum().item())

    @property
    def nbytes(self) -> int:
        """Usable bytes of all storages."""
        return sum(size for _, size in self._blocks)
