"""The newest request of a task, and how often in a row the same was asked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from evo.records import Request


@dataclass(frozen=True)
class Newest:
    """The newest request, and how many requests in a row were the same question: operator, parents and lineage."""

    request: Request
    samples: int = 1

    def followed_by(self, request: Request) -> Newest:
        """What is newest after a further request, whichever model that is for."""
        same = dataclasses.replace(self.request, number=request.number, model=request.model) == request
        return Newest(request, self.samples + 1 if same else 1)
