"""The console that commands print to."""

from __future__ import annotations

from rich.console import Console

PIPED_WIDTH = 180
"""Columns where nobody's terminal limits them, e.g. in a log of CI."""


def make_console() -> Console:
    """A console for standard output; square brackets in texts are text, not markup."""
    console = Console(markup=False, highlight=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, width=PIPED_WIDTH)
