"""`triton-evolve store copy`: a population store in another place."""

from __future__ import annotations

import shlex

import typer

from population_store.copying import copy_store


def copy_command(source: str, target: str) -> None:
    """Copies a store.

    Raises:
        StoreError: There is no such source, the target exists, or one of the two cannot be used.
    """
    count = copy_store(source, target)
    typer.echo(f"copied {count} entries of {source} to {target}, and found them equal; go on with one of the two only:")
    typer.echo(f"    triton-evolve resume {shlex.quote(target)}")
