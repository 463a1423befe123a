"""The one exception that carries a failure up from where a variant failed to whoever makes the verdict of it."""

from __future__ import annotations

from evo.records import Failure


class Failed(Exception):
    """A variant failed.

    Attributes:
        failure: How.
    """

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure
