"""What the offering child runs: every rewrite on sources, and on what another rewrite makes of a source first.

In comes a line of JSON {"source", "rewrites", "most", "reached"}, out goes one {"parents": {move: source}, "made": {rewrite: {"applies",
"children", "after"}}}. `children` change a function in `reached` where that is given, at most `most` of each rewrite; `applies` tells
whether there are any, reached or not. Where a rewrite has none, what it makes of the module after a move of `PREPARING` is in
`children`, and that move in `after`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from typing import Any

from evo.registry import find_operators
from experiments.rewrites.reaching import functions_of, reaches
from operators.rewrite.base import Rewrite
from operators.rewriting import offers

TARGETS = {"specialise_warps": "cuda:100"}
EXPOSING = "expose_knobs"
PREPARING: Mapping[str, tuple[str, ...]] = {
    "defer_reductions": ("online_blocks",),
    "fuse_launches": ("split_kernel",),
    "hoist_loads": ("persistent_rows", "rows_per_program"),
    "narrow_indices": ("widen_indices",),
    "reuse_loads": ("split_kernel+fuse_launches",),
    "split_loop": ("online_blocks",),
    "split_loop_atomically": ("online_blocks",),
    "stage_atomics": ("add_partials_atomically", "split_loop_atomically"),
    "stream_rounds": ("online_blocks",),
    "welford": ("defer_reductions", "centre_variance+defer_reductions+defer_reductions"),
    "whole_row": ("online_blocks",),
}
"""Moves, several joined by ``+``, that make what a rewrite looks for, besides exposing the knobs of a module: a search that knows the one
soon makes the other."""
LOOKED_AT = 8
"""Sites of a rewrite among which those that a driver reaches are looked for."""


class Offering:
    """One module.

    Args:
        rewrites: All there are.
        source: The module.
        reached: Its functions that calls reach; None where that is not known.
        most: Children wanted of each rewrite.
    """

    def __init__(self, rewrites: Mapping[str, Rewrite], source: str, reached: Collection[str] | None, most: int) -> None:
        self._rewrites, self._reached, self._most = rewrites, reached, most
        self.parents = {"": source}

    def made(self, name: str, move: str = "") -> tuple[bool, list[str]]:
        """Whether a rewrite applies to the module after a move, and its children of sites that calls reach."""
        source, target = self._after(move), TARGETS.get(name, "cuda:90")
        reached = self._reached
        if reached is not None and move:  # what the move made anew is reached if it is; running it tells for certain
            reached = {*reached, *(functions_of(source) - functions_of(self.parents[""]))}
        for count in dict.fromkeys((self._most, max(self._most, LOOKED_AT))) if source else ():
            children = [item.source for item in offers(self._rewrites[name], source, target, count).children]
            found = [child for child in children if reached is None or reaches(source, child, reached)]
            if found or len(children) < count:
                return bool(children), found[: self._most]
        return bool(source), []

    def answer(self, names: Collection[str]) -> dict[str, Any]:
        """The answer to one job."""
        found: dict[str, Any] = {}
        for name in names:
            applies, children = self.made(name)
            found[name] = {"applies": applies, "children": children, "after": ""}
            for move in (EXPOSING, *PREPARING.get(name, ())) if not children and name != EXPOSING else ():
                children = self.made(name, move)[1]
                if children:
                    found[name] |= {"children": children, "after": move}
                    break
        wanted = {made["after"] for made in found.values()}
        return {"parents": {move: source for move, source in self.parents.items() if move in wanted}, "made": found}

    def _after(self, move: str) -> str:
        """The module after a move; empty where that has no site that is reached."""
        if move not in self.parents:
            before, _, last = move.rpartition("+")
            self.parents[move] = next(iter(self.made(last, before)[1]), "")
        return self.parents[move]


def main() -> None:
    """Answers sources as they come."""
    rewrites = {name: cls() for name, cls in find_operators().items() if issubclass(cls, Rewrite)}
    for line in sys.stdin:
        job = json.loads(line)
        offering = Offering(rewrites, job["source"], job["reached"], job["most"])
        sys.stdout.write(json.dumps(offering.answer(job["rewrites"])) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
