"""Search/replace edits in a model's reply: read, checked against the module they are for, and applied all at once.

An edit names whole lines that stand exactly once in the module. Whatever is not found, found twice or overlaps another edit makes
the reply unusable: a patch that is applied in the wrong place would be judged as if somebody had meant it.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

MAX_EDITS = 40

_SEARCH, _MIDDLE, _REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"


class UnusableEditError(ValueError):
    """An edit that cannot be applied; the text says which one and why, for the model that wrote it."""


@dataclass(frozen=True)
class Edit:
    """Lines to look for, and what takes their place (nothing deletes them)."""

    search: tuple[str, ...]
    replace: tuple[str, ...]


def has_edits(reply: str) -> bool:
    """Whether a reply holds at least the beginning of an edit."""
    return any(line.strip() == _SEARCH for line in reply.splitlines())


def read_edits(reply: str) -> tuple[Edit, ...]:
    """All edits of a reply, in order; text around them is passed over.

    Raises:
        UnusableEditError: One is not complete or empty, or there are too many.
    """
    edits: list[Edit] = []
    search: list[str] | None = None
    replace: list[str] | None = None
    for line in reply.replace("\r\n", "\n").split("\n"):
        mark = line.strip()
        if mark == _SEARCH:
            if search is not None:
                raise UnusableEditError(f"edit {len(edits) + 1} has no line {_REPLACE}")
            search, replace = [], None
        elif search is None:
            continue
        elif replace is None:
            if mark == _MIDDLE:
                replace = []
            elif mark == _REPLACE:
                raise UnusableEditError(f"edit {len(edits) + 1} has no line {_MIDDLE}")
            else:
                search.append(line)
        elif mark == _REPLACE:
            edits.append(_edit(search, replace, len(edits) + 1))
            search = replace = None
        else:
            replace.append(line)
    if search is not None:
        raise UnusableEditError(f"edit {len(edits) + 1} has no line {_REPLACE}")
    if not edits or len(edits) > MAX_EDITS:
        raise UnusableEditError(f"the reply has {len(edits)} edits; allowed: 1 to {MAX_EDITS}")
    return tuple(edits)


def apply_edits(source: str, edits: Sequence[Edit]) -> str:
    """The module after all edits. Each is looked for in the module as it was, so their order means nothing.

    Raises:
        UnusableEditError: One is not found, found more than once, or overlaps another.
    """
    lines = source.replace("\r\n", "\n").split("\n")
    placed = sorted((_place(lines, edit, number), edit) for number, edit in enumerate(edits, start=1))
    for ((start, _), edit), ((following, number), _) in itertools.pairwise(placed):
        if start + len(edit.search) > following:
            raise UnusableEditError(f"edit {number} overlaps another edit")
    for (start, _), edit in reversed(placed):
        lines[start : start + len(edit.search)] = edit.replace
    return "\n".join(lines)


def _edit(search: list[str], replace: list[str], number: int) -> Edit:
    if not any(line.strip() for line in search):
        raise UnusableEditError(f"edit {number} looks for nothing")
    return Edit(tuple(search), tuple(replace))


def _place(lines: Sequence[str], edit: Edit, number: int) -> tuple[int, int]:
    size = len(edit.search)
    found = [start for start in range(len(lines) - size + 1) if tuple(lines[start : start + size]) == edit.search]
    if len(found) == 1:
        return found[0], number
    if found:
        places = ", ".join(str(start + 1) for start in found[:5])
        raise UnusableEditError(f"what edit {number} looks for stands {len(found)} times in the module, at lines {places}")
    raise UnusableEditError(f"what edit {number} looks for does not stand in the module{_nearest(lines, edit)}")


def _nearest(lines: Sequence[str], edit: Edit) -> str:
    """The place that resembles most what was looked for, so that the next attempt can copy it."""
    size = len(edit.search)
    wanted = [line.strip() for line in edit.search]
    shared = [sum(a == b.strip() for a, b in zip(wanted, lines[start:], strict=False)) for start in range(len(lines))]
    best = max(range(len(lines)), key=shared.__getitem__)
    if not shared[best]:
        first = next(line for line in wanted if line)
        close = difflib.get_close_matches(first, [line.strip() for line in lines], n=1)
        if not close:
            return ""
        best = next(place for place, line in enumerate(lines) if line.strip() == close[0])
    text = "\n".join(lines[best : best + min(size, 20)])
    return f"; the lines most like it, from line {best + 1} on, are:\n{text}"
