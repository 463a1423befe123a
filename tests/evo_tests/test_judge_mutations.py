"""Every check of the judging path is taken away once, in a copy of this checkout, and a test must notice."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.evo_tests.mutations import ROOT, Mutation, Server, read_tables, unnoticed

MUTATIONS = read_tables()
MARKS = {"fast": (pytest.mark.slow,), "slow": (pytest.mark.slow,), "gpu": (pytest.mark.gpu, pytest.mark.slow)}
FEW = 20
"""So many tests without a mutation are quicker in one process than in one for each file."""

Answers = dict[str, Future[dict[str, Any]]]


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Iterator[Answers]:
    """Of all mutations that were asked for, by name, and of their tests without one, by file; two are tried at a time."""
    asked = [item.callspec.params["mutation"] for item in request.session.items if "answers" in getattr(item, "fixturenames", ())]  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory(prefix="triton-evolve-mutations-") as folder:
        server = Server(Path(folder))
        tests = sorted({node for mutation in asked for node in mutation.nodes})
        files = sorted({file_of(node) for node in tests})
        try:
            if len(tests) <= FEW:
                unmutated = dict.fromkeys(files, server.ask("unmutated", tests))
            else:
                unmutated = {file: server.ask(file, [node for node in tests if file_of(node) == file]) for file in files}
            yield unmutated | {mutation.name: server.ask(mutation.name, mutation.nodes, mutation) for mutation in asked}
        finally:
            server.close()


def file_of(node: str) -> str:
    return node.partition("::")[0]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "mutation", [pytest.param(mutation, id=mutation.name, marks=MARKS[mutation.speed]) for mutation in MUTATIONS]
)
def test_somebody_notices(answers: Answers, mutation: Mutation) -> None:
    answer, unmutated = answers[mutation.name].result(), [answers[file].result() for file in set(map(file_of, mutation.nodes))]
    assert [found for found in unmutated if "problem" in found] == []
    if "problem" not in answer and not answer["failed"] and not answer["passed"] and answer["skipped"]:
        pytest.skip("this machine offers less than the tests of that check need")
    assert unnoticed(answer, unmutated) == ""


def test_no_mutation_is_stale() -> None:
    """Told for all of them, also where only a few are tried."""
    stale = [mutation.name for mutation in MUTATIONS if (ROOT / mutation.file).read_text().count(mutation.old) != 1]
    assert stale == [], "the text that these replace has changed: write them anew"


def test_there_is_one_of_each_name() -> None:
    names = [mutation.name for mutation in MUTATIONS]
    assert len(set(names)) == len(names) >= 40
