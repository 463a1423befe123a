"""The shipped example with a language model, on real kernels: traced, compiled, run and judged as what a model at an endpoint wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evo.records import Proposal, Status
from evo.registry import find_operators
from experiments.scripted_model import Faults, ScriptedModel, rewrite_answer
from operators.models.base import Prompt
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal, read_journal
from tests.evo_tests.running_processes import ROOT, started, wait_until
from tests.operators_tests.loopback import Loopback, Message, reply
from tests.operators_tests.model_harness import CANARY, quiet_environment

EXAMPLE = ROOT / "configs" / "llm.yaml"


def answer_with_rewrites() -> Any:
    """What the endpoint says: the module of the request with one more change that our own rules know."""
    rules = [cls() for cls in find_operators().values() if not cls.needs_model]
    model = ScriptedModel(rewrite_answer(rules), faults=Faults(0.0, 0.0, 0.0))

    def answer(body: dict[str, Any]) -> Message:
        stable = tuple(block["text"] for block in body.get("system", ()))
        prompt = Prompt(stable, body["messages"][0]["content"], "hash", body["max_tokens"])
        return reply(asyncio.run(model.complete(prompt)).reply)

    return answer


def example(folder: Path, url: str, *changes: tuple[str, str]) -> Path:
    """The shipped file with another endpoint, and what else is changed."""
    text = EXAMPLE.read_text().replace("  - provider: anthropic\n", f"  - provider: anthropic\n    base_url: '{url}'\n")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "llm.yaml"
    path.write_text(text)
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("evaluations", "changes"),
    [
        (
            4,
            (
                (
                    "tasks: [attention] ",
                    "tasks: [softmax]\nevaluation: {training_cases: 1, tune_trials: 0, start_tune_trials: 0} ",
                ),
                ("# operators: [llm_optimize,", "operators: [llm_optimize,"),  # by chance, rules might make all of a few
            ),
        ),
        (20, ()),
    ],
    ids=["a few evaluations", "as shipped"],
)
def test_a_key_and_an_endpoint_are_all_that_the_example_needs(
    evaluations: int, changes: tuple[tuple[str, str], ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_environment(monkeypatch, tmp_path, ["anthropic"])
    store, front = tmp_path / "llm.sqlite", tmp_path / "front"
    with Loopback(answer_with_rewrites()) as server:
        path = example(tmp_path, server.url, *changes)
        given = ("run", str(path), "--store", str(store), "--export", str(front), "--evaluations", str(evaluations))
        with started(tmp_path, *given) as process:
            wait_until(lambda: process.poll() is not None, "the end of the run", 800.0)
        said = (tmp_path / "out.txt").read_text()
        assert process.returncode == 0, said
        assert f"the budget of {evaluations} evaluations is used" in said
        assert server.count > 0
    assert list(front.rglob("test_front.py"))
    files = [item for item in tmp_path.rglob("*") if item.is_file()]
    leaks = [item for item in files if CANARY.encode() in item.read_bytes()]
    assert leaks == [], "the key is in no store, output or export"
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        found = read_journal(opened)
        assert 0 < opened.spent.dollars <= 5
    written = {
        number for number, entry in found.outcomes.items() if isinstance(entry.outcome, Proposal) and entry.outcome.exchanges
    }
    verdicts = [entry.evaluation for entry in found.searched if entry.number in written]
    assert any(verdict.status is Status.PASSED for verdict in verdicts), [(item.status, item.message[:200]) for item in verdicts]
