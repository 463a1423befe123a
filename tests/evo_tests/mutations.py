"""What a mutation is, and how it is tried: in a private copy of this checkout, by a warm process that never imported ours.

The tables are texts in ``mutation_tables/``, one entry after the other, with an empty line between them:

    == the check, and what became of it (fast)
    in evo/file.py
    by test_file.py::test_that_must_fail
    - text that occurs there once, as many lines as it has
    + what replaces it

Without ``(fast)`` or ``(gpu)`` an entry is tried by the slow tests alone. ``by`` may be repeated; one of them has to fail.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("evo", "operators", "population_store", "tests", "experiments", "configs", "pyproject.toml", "README.md", "Makefile")
BROKEN_CODE = ("NameError", "SyntaxError", "ImportError", "ModuleNotFoundError", "IndentationError", "UnboundLocalError")
"""Errors that say that a mutation made no sense, rather than that a test looks at what it took away."""


@dataclass(frozen=True)
class Mutation:
    """One check, taken away or weakened.

    Attributes:
        name: The check, and what became of it.
        file: Path from the top of the checkout.
        old, new: Text that occurs there once, and what replaces it.
        tests: ``file.py::test`` in this folder, of which one at least must fail.
        speed: ``fast`` ones belong to the default run; ``slow`` and ``gpu`` are pytest's marks.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    speed: str = "slow"

    @classmethod
    def read(cls, entry: str) -> Mutation:
        """From an entry of a table.

        Raises:
            ValueError: It is none.
        """
        parts: dict[str, list[str]] = {"==": [], "in": [], "by": [], "-": [], "+": []}
        for line in entry.splitlines():
            mark, _, text = line.partition(" ")
            if mark not in parts:
                raise ValueError(f"no line of a mutation: {line!r}")
            parts[mark].append(text)
        if [len(parts[mark]) for mark in ("==", "in")] != [1, 1] or not all(parts.values()):
            raise ValueError(f"an entry without a name, a file, a test, an old or a new text:\n{entry}")
        named = re.fullmatch(r"(.+?)(?: \((fast|gpu)\))?", parts["=="][0])
        assert named is not None
        old, new = ("\n".join(parts[mark]) for mark in "-+")
        return cls(named[1], parts["in"][0], old, new, tuple(parts["by"]), named[2] or "slow")

    @property
    def nodes(self) -> list[str]:
        """The tests as pytest names them."""
        return [f"tests/evo_tests/{test}" for test in self.tests]


class Server:
    """The warm process; requests are answered in any order, two at a time.

    Args:
        folder: Empty; copies are made in it.
    """

    def __init__(self, folder: Path) -> None:
        base = folder / "unmutated"
        folder.chmod(0o755)  # sandboxed children are another user
        base.mkdir()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, base / name)
            elif source.exists():
                shutil.copy2(source, base / name)
        outside = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(outside)}
        program = Path(__file__).with_name("mutations_server.py")
        self._process = subprocess.Popen(
            [sys.executable, str(program), str(base)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder, env=environment, text=True,
        )  # fmt: skip
        self._answers: dict[str, Future[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, key: str, tests: Sequence[str], mutation: Mutation | None = None) -> Future[dict[str, Any]]:
        """Runs tests, against a mutation or without one; see `tests.evo_tests.mutations_server`."""
        change = {} if mutation is None else {"file": mutation.file, "old": mutation.old, "new": mutation.new}
        self._answers[key] = Future()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"key": key, "tests": list(tests), **change}) + "\n")
        self._process.stdin.flush()
        return self._answers[key]

    def close(self) -> None:
        """Ends the process and all that it runs."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._reader.join(10)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            answer = json.loads(line)
            self._answers[answer.pop("key")].set_result(answer)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(RuntimeError(f"the process that runs mutations ended: exit {self._process.wait()}"))


def unnoticed(answer: dict[str, Any], unmutated: Sequence[dict[str, Any]]) -> str:
    """Why a mutation does not count as noticed; empty where it does. The test that noticed it must pass without it."""
    if "problem" in answer:
        return f"{answer['problem']}\n{answer.get('log', '')}"
    if not answer["failed"]:
        return f"no test notices: {len(answer['passed'])} passed, {len(answer['skipped'])} skipped\n{answer['log']}"
    (node, error), *_ = answer["failed"].items()
    if answer["code"] != 1 or error.split(":")[0] in BROKEN_CODE:
        return f"the mutation breaks the code rather than a check: {node}: {error}\n{answer['log']}"
    if not any(node in found["passed"] for found in unmutated):
        why = [found["failed"][node] for found in unmutated if node in found["failed"]]
        return f"{node} fails without the mutation too, or does not run: {why}"
    return ""


def read_tables() -> tuple[Mutation, ...]:
    """All of ``mutation_tables/``."""
    tables = sorted(Path(__file__).with_name("mutation_tables").glob("*.txt"))
    return tuple(Mutation.read(entry) for table in tables for entry in table.read_text().split("\n\n") if entry.strip())
