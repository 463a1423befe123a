"""What all rewrites share: they list the sites they could change, one of which the random generator picks."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import libcst as cst
import numpy as np

from evo.records import NoProposal, Proposal
from evo.syntax import module_tree
from operators.base import Context, Operator, OperatorKind, Parent
from operators.source import NotApplicableError, Source, check, read_source


@dataclass(frozen=True)
class Site:
    """One place a rewrite could change.

    Attributes:
        strategy: What the child does that its parent does not, for people and models.
        apply: Makes the new module; raises NotApplicableError where a closer look forbids it.
    """

    strategy: str
    apply: Callable[[], cst.Module]


class Rewrite(Operator):
    """A mutation that follows a rule. It looks at structure only, changes no precision and keeps what it does not touch.

    Class attributes:
        exact: Children compute the same bits; those of the others differ in rounding alone, which the task's tolerance judges. No
            rewrite changes a data type.
        when: When it is worth trying, for people.
        cites: Where it is from.
    """

    kind = OperatorKind.MUTATION
    exact: ClassVar[bool] = True
    when: ClassVar[str] = ""
    cites: ClassVar[str] = ""

    @abstractmethod
    def sites(self, source: Source) -> Iterator[Site]:
        """The places this rewrite could change; raises NotApplicableError where the module as a whole forbids it."""

    def check_target(self, target: str) -> None:
        """Raises NotApplicableError where a target, ``backend:arch``, lacks what the rewrite uses; by default none does."""

    def sites_of(self, parent: Parent, source: Source) -> Iterator[Site]:
        """As `sites`, for rewrites that also look at the parent's evaluation."""
        return self.sites(source)

    async def propose(self, parents: tuple[Parent, ...], context: Context, rng: np.random.Generator) -> Proposal | NoProposal:
        """The parent with one site rewritten, or the first reason why none can be."""
        text = parents[0].variant.source
        reasons: list[str] = []
        try:
            self.check_target(context.target)
            sites = list(self.sites_of(parents[0], read_source(text)))
            for index in rng.permutation(len(sites)):
                try:
                    child = sites[index].apply().code
                    check(child)
                    if ast.dump(module_tree(child)) != ast.dump(module_tree(text)):
                        return Proposal(child, sites[index].strategy)
                except NotApplicableError as error:
                    reasons.append(str(error))
        except NotApplicableError as error:
            reasons.append(str(error))
        return NoProposal(f"{self.name}: {reasons[0] if reasons else 'no kernel has the form it changes'}")
