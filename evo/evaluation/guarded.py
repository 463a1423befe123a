"""Memory for the gate: undefined bytes are poisoned and every buffer lies between guard bands that must stay untouched."""

from __future__ import annotations

import torch

GUARD_BYTES = 4096
POISON = 0xFF
"""0xFF bytes are NaN in every floating-point format and -1 in integers."""
PATTERN = 0xA5


class GuardedMemory:
    """Allocates storages with guard bands and remembers them; see `evo.evaluation.runner.Memory`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._blocks: list[tuple[torch.Tensor, int]] = []

    def allocate(self, nbytes: int) -> tuple[torch.UntypedStorage, int]:
        """A poisoned storage; the usable part starts after the first band."""
        block = torch.full((nbytes + 2 * GUARD_BYTES,), POISON, dtype=torch.uint8, device=self._device)
        block[:GUARD_BYTES] = PATTERN
        block[GUARD_BYTES + nbytes :] = PATTERN
        self._blocks.append((block, nbytes))
        return block.untyped_storage(), GUARD_BYTES

    def violations(self) -> int:
        """How many bands were written to."""
        broken = 0
        for block, nbytes in self._blocks:
            for band in (block[:GUARD_BYTES], block[GUARD_BYTES + nbytes :]):
                broken += int((band != PATTERN).any().item())
        return broken

    @property
    def nbytes(self) -> int:
        """Usable bytes of all storages."""
        return sum(size for _, size in self._blocks)
