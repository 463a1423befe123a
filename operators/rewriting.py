"""What a rewrite makes of a module, site by site, for whoever wants one move by hand or all of them."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

from evo.syntax import module_tree
from operators.rewrite.base import Rewrite
from operators.source import NotApplicableError, Source, check, read_source


@dataclass(frozen=True)
class Offer:
    """One site of a module.

    Attributes:
        rewrite: Name of the rewrite.
        strategy: What the child does that the module does not.
        source: The child; empty where a closer look forbids it.
        reason: Why it does.
    """

    rewrite: str
    strategy: str
    source: str
    reason: str = ""


@dataclass(frozen=True)
class Offers:
    """All that a rewrite offers for a module.

    Attributes:
        sites: In the order of the module, also those that turn out not to be possible.
        reason: Why there is none, where the module or the target as a whole forbids it.
    """

    sites: tuple[Offer, ...]
    reason: str = ""

    @property
    def children(self) -> tuple[Offer, ...]:
        """Those that are possible."""
        return tuple(site for site in self.sites if site.source)


@functools.lru_cache(maxsize=4)
def _read(text: str) -> Source:
    return read_source(text)


def offers(rewrite: Rewrite, text: str, target: str = "cuda:90", most: int = 64) -> Offers:
    """Applies a rewrite to each of a module's sites, one at a time, up to `most` children; raises nothing."""
    found: list[Offer] = []
    reason = ""
    try:
        rewrite.check_target(target)
        for site in rewrite.sites(_read(text)):
            if sum(bool(item.source) for item in found) >= most:
                break
            try:
                child = site.apply().code
                check(child)
                if ast.dump(module_tree(child)) == ast.dump(module_tree(text)):
                    raise NotApplicableError("the module is that way already")
                found.append(Offer(rewrite.name, site.strategy, child))
            except NotApplicableError as error:
                found.append(Offer(rewrite.name, site.strategy, "", str(error)))
    except NotApplicableError as error:
        reason = str(error)
    return Offers(tuple(found), reason or ("" if found else "no kernel has the form it changes"))
