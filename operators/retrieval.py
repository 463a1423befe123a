"""Finds the good kernels most similar to one, as examples for a prompt, and keeps a task's own answers out of them."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable

from operators.base import Example
from operators.likeness import NEAR, shingles, similarity

EXAMPLES = 1
"""Shown per prompt: one example teaches a technique, several cost tokens in every request (GEAK shows one too)."""

LEAST = 0.05
"""Similarity below which an example has nothing to do with the kernel at hand."""

CONTAINED = 0.8
"""Share of a reference's shingles, names included, from which on a kernel holds it."""

TELLING = 30
"""Shingles and characters that a reference has at least if holding it is to mean anything: ``return x`` is in every module."""


def most_similar(
    query: str, candidates: Iterable[Example], forbidden: Collection[str] = (), count: int = EXAMPLES
) -> tuple[Example, ...]:
    """The most similar candidates, most similar first; of equals, the faster one.

    Args:
        query: Source of the kernel at hand, or the reference where there is none.
        candidates: Good kernels; one that is nearly the query itself, or nearly one chosen already, teaches nothing and is left out.
        forbidden: Texts that no example may hold, see `leaks`.
        count: How many.
    """
    ranked = sorted(
        ((similarity(query, item.source), item.speedup, item.source, item) for item in candidates), key=lambda row: row[:3]
    )
    chosen: list[Example] = []
    for alike, _, _, item in reversed(ranked):
        if len(chosen) == count or alike < LEAST:
            break
        near = alike >= NEAR or any(similarity(other.source, item.source) >= NEAR for other in chosen)
        if not near and not leaks(item.source, forbidden):
            chosen.append(item)
    return tuple(chosen)


def leaks(source: str, forbidden: Collection[str]) -> bool:
    """Whether a kernel is one of some texts (a task's reference, its held-out answers), or holds one of them.

    Compared without comments and layout, and by runs of tokens, so that renamed parts around a copy do not hide it.
    """
    return any(_holds(source, text) for text in forbidden)


@functools.lru_cache(maxsize=2048)
def _holds(source: str, text: str) -> bool:
    plain, wanted = _plain(source), _plain(text)
    if not wanted:
        return False
    if plain == wanted or (len(wanted) >= TELLING and wanted in plain):
        return True
    parts = shingles(text, names=True)
    if len(parts) < TELLING:
        return False
    return len(parts & shingles(source, names=True)) >= CONTAINED * len(parts)


def _plain(text: str) -> str:
    return re.sub(r"\s+", "", re.sub(r"#[^\n]*", "", text))
