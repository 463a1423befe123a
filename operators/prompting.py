"""From prompt files to text, and from a model's reply to a kernel module.

Whatever comes from a kernel, an error message, a store or a model is data: it is fenced on its way in, and on its way out it can
only become module text that goes through the gate like any other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from evo.errors import InputError
from evo.records import content_id
from evo.syntax import module_tree
from operators.grammar.check import module_violation

PROMPTS = Path(__file__).with_name("prompts")

MAX_REPLY_BYTES = 200_000
"""Larger replies are refused unread; the longest hand-written kernel modules have about 60 kB."""

MAX_STRATEGY_CHARS = 200

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")
_FENCE = re.compile(r" {0,3}(?P<fence>`{3,}|~{3,})[ \t]*(?P<label>[^`\r\n]*)$")
_PYTHON_LABELS = frozenset({"", "python", "py", "python3", "triton"})
_LINE = re.compile(r"^[\s>*_#-]*(?P<key>strategy|lesson)[\s*_]*:[\s*_]*(?P<text>\S.*)$", re.IGNORECASE)


_UNPARSABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What `ast.parse` raises on hostile or broken text."""


class UnusableReplyError(ValueError):
    """A reply from which no kernel module can be taken; the text says why in one sentence."""


@dataclass(frozen=True)
class Template:
    """A prompt file with ``{{name}}`` placeholders.

    Attributes:
        name: File name without ``.md``.
        text: Its text.
    """

    name: str
    text: str

    @classmethod
    def load(cls, name: str) -> Template:
        """Reads one of our prompt files.

        Raises:
            InputError: There is none of that name.
        """
        path = PROMPTS / f"{name}.md"
        if not path.is_file():
            raise InputError(f"prompt {path}", action="no such file", allowed=sorted(item.stem for item in PROMPTS.glob("*.md")))
        return cls(name, path.read_text(encoding="utf-8").strip())

    @property
    def placeholders(self) -> frozenset[str]:
        """The names it needs."""
        return frozenset(_PLACEHOLDER.findall(self.text))

    def render(self, **values: str) -> str:
        """Fills in every placeholder; text that is filled in is not searched for placeholders again.

        Raises:
            InputError: A placeholder has no value, or a value no placeholder.
        """
        missing, unused = self.placeholders - set(values), set(values) - self.placeholders
        if missing or unused:
            given = (
                f"no value for {', '.join(sorted(missing))}"
                if missing
                else f"values without placeholder: {', '.join(sorted(unused))}"
            )
            raise InputError(f"prompt {self.name}.md", given=given, allowed=sorted(self.placeholders))
        return _PLACEHOLDER.sub(lambda match: values[match[1]], self.text)


def template_hash(*templates: Template) -> str:
    """Hash of the files that a prompt is rendered from, in order."""
    return content_id(*(template.text for template in templates))


def fenced(text: str, label: str = "text", limit: int = 60_000) -> str:
    """Text as a code block that nothing inside it can close.

    Args:
        text: Any text; what cannot be encoded is replaced.
        label: The block's language.
        limit: Characters after which it is cut, with a note of how many are missing.
    """
    clean = text.encode("utf-8", "replace").decode().replace("\0", "\ufffd").replace("\r\n", "\n").strip("\n")
    if len(clean) > limit:
        clean = f"{clean[:limit]}\n… ({len(clean) - limit} more characters)"
    longest = max((len(run) for run in re.findall(r"`+", clean)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{label}\n{clean}\n{fence}"


def extract_module(reply: str, entry: str) -> str:
    """The one Python module in a reply that defines `entry`.

    Blocks that do not parse or do not define it are passed over; a block given twice counts once.

    Raises:
        UnusableReplyError: None or several different ones, or the reply is too large.
    """
    size = len(reply.encode("utf-8", "replace"))
    if size > MAX_REPLY_BYTES:
        raise UnusableReplyError(f"the reply has {size} bytes, more than the {MAX_REPLY_BYTES} allowed")
    blocks = [text for label, text in _split(reply)[1] if label in _PYTHON_LABELS]
    if not blocks:
        blocks = [reply]  # a model that was told to answer with code alone may leave the fences out
    sources = dict.fromkeys(block.removeprefix("\ufeff").strip("\n").rstrip() + "\n" for block in blocks)
    modules = [source for source in sources if not module_problem(source, entry, place=False)]
    if len(modules) > 1:
        raise UnusableReplyError(f"the reply has {len(modules)} different modules that define {entry}; one is wanted")
    if not modules:
        problem = module_problem(list(sources)[-1], entry)
        raise UnusableReplyError(f"the reply has no Python module that defines {entry}: {problem}")
    return modules[0]


def same_program(first: str, second: str) -> bool:
    """Whether two modules differ in comments and layout at most; a text that does not parse equals only itself."""
    if first == second:
        return True
    try:
        return ast.dump(module_tree(first)) == ast.dump(module_tree(second))
    except _UNPARSABLE:
        return False


def strategy_line(reply: str) -> str:
    """What the model says it did: its ``Strategy:`` line, else the first line outside code; at most 200 characters."""
    prose = [line for line in (" ".join(line.split()) for line in _split(reply)[0]) if line]
    return _line(prose, "strategy") or (_shortened(prose[0].lstrip("#>*- ")) if prose else "(no summary given)")


def lesson_line(reply: str) -> str:
    """What the model says a failure taught it: its ``Lesson:`` line, at most 200 characters; empty without one."""
    return _line([" ".join(line.split()) for line in _split(reply)[0]], "lesson")


def _line(prose: Iterable[str], key: str) -> str:
    matches = (match for match in map(_LINE.match, prose) if match is not None and match["key"].lower() == key)
    return next((_shortened(match["text"].rstrip("*_ ")) for match in matches), "")


def _shortened(text: str) -> str:
    clean = "".join(character if character.isprintable() else " " for character in text).strip()
    return clean if len(clean) <= MAX_STRATEGY_CHARS else clean[: MAX_STRATEGY_CHARS - 1] + "…"


def _split(reply: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Lines outside code, and (label, text) of every fenced block; one that is not closed goes to the end of the reply."""
    prose: list[str] = []
    blocks: list[tuple[str, str]] = []
    fence = ""
    label = ""
    lines: list[str] = []
    for line in reply.replace("\r\n", "\n").split("\n"):
        match = _FENCE.match(line)
        if not fence:
            if match:
                fence, label, lines = match["fence"], match["label"].strip().lower().partition(" ")[0], []
            else:
                prose.append(line)
        elif match and match["fence"].startswith(fence) and not match["label"].strip():
            blocks.append((label, "\n".join(lines)))
            fence = ""
        else:
            lines.append(line)
    if fence:
        blocks.append((label, "\n".join(lines)))
    return prose, blocks


def module_problem(source: str, entry: str, *, place: bool = True) -> str:
    """Why this text is no module that defines `entry`, empty if it is one.

    Args:
        source: The text.
        entry: What it must define.
        place: Look for where it leaves the grammar, which takes much longer than all else.
    """
    try:
        tree = module_tree(source)
    except SyntaxError as error:
        found = module_violation(source) if place else None
        return f"line {error.lineno}: {error.msg}" + (f"; {found}" if found else "")
    except _UNPARSABLE as error:
        return f"it cannot be parsed ({type(error).__name__})"
    return "" if any(entry in _defined(node) for node in tree.body) else f"it does not define {entry}"


def _defined(node: ast.stmt) -> set[str]:
    """Names that a top-level statement binds by definition or plain assignment."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()
