"""Keeps secrets and names of people's folders out of data sets.

Model clients take their own keys out of all they record, and candidates run without an environment, so a store has none; this is
the second lock. What looks like a key is no kernel, so a row with one is left out rather than mended.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping

from evo.exchanges import KEY_ENDINGS

LEAST = 12
"""Characters of a variable's value from which on it is looked for: shorter ones are in every text."""

_ENDINGS = (*KEY_ENDINGS, "_TOKEN", "_SECRET", "_PASSWORD", "_ACCESS_KEY")
_SHAPES = re.compile(
    r"sk-(?:ant|proj|or|svcacct|admin)-[\w-]{8,}|sk-[A-Za-z0-9]{20,}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|(?:nvapi|xai|pplx|glpat|pypi)-[\w-]{20,}|(?:gsk|fw|r8|npm|dckr_pat)_[A-Za-z0-9]{20,}|eyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|xox[abprs]-[\w-]{10,}|Bearer [\w.~+/-]{20,}|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|\w://[^\s/:@]+:[^\s/@]+@"
)
"""Keys of well-known services, signed tokens (JWT), private keys, and passwords in addresses."""
_HOMES = re.compile(r"(?<![\w.])/(?:home|Users)/[^/\s'\":]+|(?<![\w.])/root(?=/)")


def secrets_here(environment: Mapping[str, str] | None = None, named: Collection[str] = ()) -> frozenset[str]:
    """Values of variables that hold secrets, by their names.

    Args:
        environment: None for this process's own.
        named: Variables that hold some whatever they are called.
    """
    given = os.environ if environment is None else environment
    secret = {name for name in given if name in named or name.upper().endswith(_ENDINGS)}
    return frozenset(given[name] for name in secret if len(given[name]) >= LEAST)


def has_secret(texts: Iterable[str], known: Iterable[str] = ()) -> bool:
    """Whether a text has one of the known secrets, or something of the shape of one."""
    known = tuple(known)
    return any(_SHAPES.search(text) or any(secret in text for secret in known) for text in texts)


def without_homes(text: str) -> str:
    """Home folders as ``~``: an error message may name a file by its path."""
    return _HOMES.sub("~", text)
