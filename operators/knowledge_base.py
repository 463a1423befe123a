"""Selects from the knowledge sheets (`operators/knowledge/*.md`) what fits a target, a task and the evidence, within a budget of tokens.

A sheet begins with its front matter, ``key: value`` lines between two lines of three dashes:

    about     hardware, triton, technique, numerics, cure or bound
    targets   hardware: targets it describes, e.g. ``cuda:90``
    versions  triton: versions it is true for, e.g. ``3.6``, ``>=3.9`` (all of them must hold)
    kinds     technique: kernel kinds of tasks
    words     technique: a pattern; a task whose text it is found in wants the sheet too
    errors    cure: a pattern; a message it is found in wants the sheet
    bounds    bound: what limits a kernel: memory, compute, latency
    sources   where its facts are from, separated by ``; `` (for readers of the file; prompts leave them out)

Sheets are ours and trusted; nothing that a model, a kernel or a store wrote is ever made a sheet.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from evo.errors import InputError
from evo.records import content_id

SHEETS = Path(__file__).with_name("knowledge")

CHARACTERS_PER_TOKEN = 3.5
"""Technical English and code have about four; the budget shall hold for every tokenizer."""

RUN_TOKENS, TASK_TOKENS, EVIDENCE_TOKENS = 1_600, 1_600, 800
"""Budgets of the three selections; the first two stand in the cached part of a prompt."""

_KEYS = frozenset({"about", "targets", "versions", "kinds", "words", "errors", "bounds", "sources"})
_VERSION = re.compile(r"(>=|<=|<|>|)(\d+)\.(\d+)")


class About(StrEnum):
    """What a sheet is about, which decides when it is wanted."""

    HARDWARE = "hardware"
    TRITON = "triton"
    TECHNIQUE = "technique"
    NUMERICS = "numerics"
    CURE = "cure"
    BOUND = "bound"


@dataclass(frozen=True)
class Sheet:
    """One file. See the module's docstring for its fields; empty ones restrict nothing."""

    name: str
    about: About
    text: str
    targets: frozenset[str]
    versions: tuple[str, ...]
    kinds: frozenset[str]
    words: re.Pattern[str] | None
    errors: re.Pattern[str] | None
    bounds: frozenset[str]
    sources: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """An upper estimate."""
        return math.ceil(len(self.text) / CHARACTERS_PER_TOKEN)

    @classmethod
    def read(cls, path: Path) -> Sheet:
        """Reads one file.

        Raises:
            InputError: Its front matter is missing, has unknown keys or malformed values.
        """
        head, text = _split(path)
        unknown = set(head) - _KEYS
        if unknown:
            raise InputError(f"knowledge {path}", given=sorted(unknown), allowed=sorted(_KEYS))
        try:
            about = About(head.get("about", ""))
            words, errors = (re.compile(head[key], re.IGNORECASE) if key in head else None for key in ("words", "errors"))
        except (ValueError, re.error) as error:
            raise InputError(f"knowledge {path}", action=str(error)) from error
        versions = _listed(head.get("versions", ""))
        if any(_VERSION.fullmatch(version) is None for version in versions):
            raise InputError(f"knowledge {path}: versions", given=versions, allowed="3.6, >=3.9, <3.8 …")
        sets = (frozenset(_listed(head.get(key, ""))) for key in ("targets", "kinds", "bounds"))
        targets, kinds, bounds = sets
        sources = tuple(part.strip() for part in head.get("sources", "").split("; ") if part.strip())
        return cls(path.stem, about, text, targets, versions, kinds, words, errors, bounds, sources)


@dataclass(frozen=True)
class KnowledgeBase:
    """All sheets, by name."""

    sheets: tuple[Sheet, ...]

    @classmethod
    def load(cls, folder: Path = SHEETS) -> KnowledgeBase:
        """The sheets of a folder; ours by default.

        Raises:
            InputError: One is malformed.
        """
        return _load(folder)

    @property
    def hash(self) -> str:
        """Of all sheets."""
        return content_id(*(part for sheet in self.sheets for part in (sheet.name, sheet.text)))

    def for_run(self, target: str, triton_version: str, tokens: int = RUN_TOKENS) -> str:
        """What is known of the device and of the compiler; the same for a whole run."""
        hardware = [sheet for sheet in self._of(About.HARDWARE) if target in sheet.targets]
        compiler = [sheet for sheet in self._of(About.TRITON) if _holds(sheet.versions, triton_version)]
        return _within([*hardware, *compiler], tokens)

    def for_task(self, kind: str, text: str, tokens: int = TASK_TOKENS) -> str:
        """Techniques for a kind of kernel, then for what a task's text speaks of, then numerics; the same for a whole task.

        Args:
            kind: `evo.tasks.base.Task.kind`.
            text: Description and reference.
            tokens: Budget.
        """
        techniques = self._of(About.TECHNIQUE)
        named = [sheet for sheet in techniques if kind in sheet.kinds]
        spoken = [sheet for sheet in techniques if sheet not in named and sheet.words is not None and sheet.words.search(text)]
        return _within([*named, *self._of(About.NUMERICS), *spoken], tokens)

    def for_evidence(self, *, message: str = "", bounds: Iterable[str] = (), tokens: int = EVIDENCE_TOKENS) -> str:
        """Cures for an error message, and what helps where something is known to limit a kernel. The message is only searched."""
        cures = [sheet for sheet in self._of(About.CURE) if sheet.errors is not None and sheet.errors.search(message)]
        limits = [sheet for sheet in self._of(About.BOUND) if sheet.bounds & set(bounds)]
        return _within([*cures, *limits], tokens)

    def _of(self, about: About) -> list[Sheet]:
        return [sheet for sheet in self.sheets if sheet.about is about]


@functools.cache
def _load(folder: Path) -> KnowledgeBase:
    return KnowledgeBase(tuple(Sheet.read(path) for path in sorted(folder.glob("*.md"))))


def _within(sheets: Iterable[Sheet], tokens: int) -> str:
    """Whole sheets in order, each that still fits."""
    parts: list[str] = []
    for sheet in sheets:
        if sheet.tokens <= tokens:
            parts.append(sheet.text)
            tokens -= sheet.tokens
    return "\n\n".join(parts)


def _split(path: Path) -> tuple[dict[str, str], str]:
    lines = path.read_text(encoding="utf-8").split("\n")
    if lines[0] != "---" or "---" not in lines[1:]:
        raise InputError(f"knowledge {path}", action="it has to begin with front matter between two lines of three dashes")
    end = lines.index("---", 1)
    head = dict(line.split(":", 1) for line in lines[1:end] if ":" in line)
    text = "\n".join(lines[end + 1 :]).strip()
    if not text:
        raise InputError(f"knowledge {path}", action="it has no text")
    return {key.strip(): value.strip() for key, value in head.items()}, text


def _listed(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _holds(conditions: Iterable[str], version: str) -> bool:
    """Whether every condition is true of a version such as ``3.6.0+git1a2b``; of an unreadable one, none is."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        return False
    given = int(found[1]), int(found[2])
    for condition in conditions:
        match = _VERSION.fullmatch(condition)
        assert match is not None, "checked when the sheet was read"
        other = int(match[2]), int(match[3])
        comparisons = {">=": given >= other, "<=": given <= other, ">": given > other, "<": given < other, "": given == other}
        if not comparisons[match[1]]:
            return False
    return True
