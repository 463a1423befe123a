"""`triton-evolve rewrite`: which rewrites apply to a kernel module, and what one of them changes, as a diff."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer
from rich.table import Table

from evo.commands.console import make_console
from evo.commands.given import read_kernel
from evo.errors import InputError
from evo.registry import find_operators
from operators.rewrite.base import Rewrite
from operators.rewriting import Offer, Offers, offers


@dataclass(frozen=True)
class RewriteOptions:
    """What the command line says.

    Attributes:
        apply: Name of the rewrite to apply; None: list what applies.
        site: Number of the site, counted from 1 as the list does.
        every: List also rewrites that do not apply, with the reason.
        target: ``backend:arch``.
        out: File for the child.
    """

    apply: str | None = None
    site: int | None = None
    every: bool = False
    target: str = "cuda:90"
    out: Path | None = None


def rewrite_command(file: Path, options: RewriteOptions) -> int:
    """Lists or applies.

    Returns:
        0, or 1 where the rewrite does not apply; then it prints why.

    Raises:
        InputError: The file, the name, the site or the output cannot be used.
    """
    source = read_kernel(file)
    rewrites = {name: cls() for name, cls in find_operators().items() if issubclass(cls, Rewrite)}
    if options.apply is None:
        return _list(file, source, rewrites, options)
    if options.apply not in rewrites:
        raise InputError("--apply", given=options.apply, allowed=rewrites)
    if options.out is not None and options.out.exists():
        raise InputError(str(options.out), action="exists already: give another name")
    rewrite = rewrites[options.apply]
    found = offers(rewrite, source, options.target)
    if not found.children:
        typer.echo(f"{rewrite.name} does not apply to {file}: {_why(found)}")
        return 1
    return _apply(file, source, rewrite, _chosen(found, options.site), options.out)


def _chosen(found: Offers, site: int | None) -> Offer:
    if site is None:
        return found.children[0]
    if site > len(found.sites):
        raise InputError("--site", given=site, allowed=f"1 … {len(found.sites)}")
    return found.sites[site - 1]


def _apply(file: Path, source: str, rewrite: Rewrite, offer: Offer, out: Path | None) -> int:
    if not offer.source:
        typer.echo(f"{rewrite.name} does not apply there: {offer.reason}")
        return 1
    before, after = (text.splitlines(keepends=True) for text in (source, offer.source))
    typer.echo("".join(difflib.unified_diff(before, after, str(file), str(out or f"{file} ({rewrite.name})"))), nl=False)
    rounding = "" if rewrite.exact else "; results may differ in rounding"
    typer.echo(f"{offer.strategy}{rounding}", err=True)
    if out is not None:
        try:
            out.write_text(offer.source, encoding="utf-8")
        except OSError as error:
            raise InputError(str(out), action=f"cannot be written: {error.strerror}") from None
    return 0


def _list(file: Path, source: str, rewrites: Mapping[str, Rewrite], options: RewriteOptions) -> int:
    console = make_console()
    table = Table("rewrite", "site", "what it does there", box=None, header_style="bold", pad_edge=False)
    count, refused = 0, []
    for name, rewrite in rewrites.items():
        found = offers(rewrite, source, options.target)
        count += len(found.children)
        for number, site in enumerate(found.sites, 1):
            if site.source:
                table.add_row(name, str(number), site.strategy)
        if not found.children:
            refused.append((name, _why(found)))
    console.print(f"{file}: {count} children of {len(rewrites) - len(refused)} rewrites; see one with --apply NAME --site N")
    if count:
        console.print(table)
    if options.every:
        reasons = Table("does not apply", "why", box=None, header_style="bold", pad_edge=False)
        for name, reason in refused:
            reasons.add_row(name, reason)
        console.print(reasons)
    return 0


def _why(found: Offers) -> str:
    return found.reason or next((site.reason for site in found.sites), "no kernel has the form it changes")
