"""Lets `triton-evolve bench` take the name of a suite where the name of a command stands."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

COMMAND = "suite"
"""What such a name is an argument of."""


class SuiteGroup(TyperGroup):
    """A group in which whatever is none of its commands is a suite; which suites there are is known to `evo.suites.registry`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click."""
        named = bool(args) and args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(ctx, [COMMAND, *args] if named else args)
