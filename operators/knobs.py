"""Finds every knob of a kernel module and makes it one that tuning can turn: `expose`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from operators.rewrite.parameterise_tile import ParameteriseTile
from operators.rewrite.unfold_autotune import UnfoldAutotune
from operators.source import NotApplicableError, check, read_source


class CaseLike(Protocol):
    """What is asked of a case: its positional arguments, of which tensors have a `shape`."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """Positional arguments of the entry."""


@dataclass(frozen=True)
class Exposed:
    """A module with its knobs declared.

    Attributes:
        source: Equivalent to the original in the configuration that it declares.
        found: A line per knob, such as ``BLOCK of kernel add_kernel: 1024, of 256 … 4096``.
        left: Why something that might have been a knob was left as it is, a line each.
    """

    source: str
    found: tuple[str, ...]
    left: tuple[str, ...]


def expose(source: str, cases: Sequence[CaseLike] | None = None, *, target: str = "cuda:90") -> Exposed:
    """A module's source with every knob that can be found.

    Args:
        source: Any module with Triton kernels.
        cases: The cases it is to be tuned on; they bound the tiles.
        target: ``backend:arch``; some options exist on one backend only.

    Raises:
        NotApplicableError: The source cannot be read, or declares contradictory knobs. It is a ValueError.
    """
    found: list[str] = []
    left: list[str] = []
    for rewrite in (UnfoldAutotune(), ParameteriseTile()):
        tried: set[str] = set()
        while True:
            site = next((s for s in rewrite.sites(read_source(source)) if s.strategy not in tried), None)
            if site is None:
                break
            tried.add(site.strategy)
            try:
                child = site.apply().code
                check(child)
            except NotApplicableError as error:
                left.append(str(error))
            else:
                source = child
                found.append(site.strategy)
    return Exposed(source, tuple(found), tuple(left))
