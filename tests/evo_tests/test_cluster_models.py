"""Whole searches with language models on a real local Ray and real HTTP: one budget, a mix of models, refusals, kills, and no key left."""

from __future__ import annotations

import ast
import itertools
import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evo.config import ModelSection, RunConfig
from evo.records import NoProposal, Request
from evo.search.progress import Progress
from evo.search.settings import Budget
from operators.models.prices import read_prices
from population_store.base import OutcomeEntry, PopulationStore, Purpose
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal, read_journal
from tests.evo_tests.running_processes import descendants, started, titled, wait_until
from tests.evo_tests.test_cluster_run import drive, spec_of
from tests.operators_tests.loopback import Answer, Failure, Loopback, Message, reply
from tests.operators_tests.loopback_formats import asked

CANARY = "sk-canary-0123456789abcdef"
DEAR, CHEAP = "gpt-6.1-sol", "gpt-6-luna"
_BLOCK = re.compile(r"```python\n(.*?)```", re.S)
_numbers = itertools.count()


def rewritten(body: dict[str, Any]) -> Message:
    """What a model might answer: the last module of the prompt with a constant more."""
    for source in reversed(_BLOCK.findall("".join(asked(body)))):
        names = [node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        if "softmax" in names and "torch" in source:
            number = next(_numbers)
            return reply(f"Strategy: setting {number}.\n```python\n{source}\n\nSETTING_{number} = {number}\n```")
    raise AssertionError("the prompt shows no module")


def models_config(config: RunConfig, server: Loopback, *names: str, proposers: int = 1, **budget: Any) -> RunConfig:
    """Two or more models behind a keyless server."""
    options: dict[str, bool | int | float | str] = {"max_retries": 0, "timeout_s": 60.0}
    sections = tuple(
        ModelSection(provider="openai", name=name, base_url=server.url, max_tokens=2_000, options=options) for name in names
    )
    return config.model_copy(
        update={
            "models": sections,
            "operators": ("llm_optimize",),
            "budget": Budget(**budget),
            "cluster": config.cluster.model_copy(update={"proposers": proposers}),
        }
    )


def billed(server: Loopback, name: str) -> float:
    price = read_prices().models[name]
    return sum(price.dollars(fresh=b.fresh, write_5m=b.written, read=b.read, output=b.output) for b in server.bills)


def questions(store: PopulationStore) -> list[tuple[str, Request]]:
    """Requests for a model as they were ``made`` and, in between, as they were ``refused`` or ``answered``."""
    requests: dict[int, Request] = {}
    found = []
    for _, entry in store.journal():
        if isinstance(entry, Request):
            requests[entry.number] = entry
            found.append(("made", entry))
        elif isinstance(entry, OutcomeEntry):
            outcome = entry.outcome
            refused = isinstance(outcome, NoProposal) and any(item.stop_reason == "refusal" for item in outcome.exchanges)
            found.append(("refused" if refused else "answered", requests[entry.number]))
    return [(what, request) for what, request in found if request.model]


@pytest.mark.usefixtures("local_ray")
def test_a_refused_question_goes_to_another_model_and_never_back(
    simulated_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return Message(("I would rather not.",), "refusal") if body["model"] == CHEAP else rewritten(body)

    store = tmp_path / "run.sqlite"
    with Loopback(answer, keyless=True) as server:
        config = models_config(simulated_config(), server, CHEAP, DEAR, evaluations=14)
        assert "14 evaluations" in drive(spec_of(config, store))
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        found = questions(opened)
    assert {request.model for _, request in found} == {CHEAP, DEAR}
    assert {what for what, request in found if request.model == CHEAP} <= {"made", "refused"}
    passed_on = 0
    for place, (what, request) in enumerate(found):
        if what == "refused":
            same = [item for made, item in found[place + 1 :] if made == "made" and item.parents == request.parents]
            assert CHEAP not in {item.model for item in same}
            passed_on += request.lineage in {item.lineage for item in same}
    assert passed_on


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_two_proposers_never_overrun_the_dollars_and_what_a_killed_one_held_counts_as_spent(
    simulated_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    slow = {"answer": True}

    def answer(body: dict[str, Any]) -> Answer:
        return Message(rewritten(body).blocks, delay_s=20.0 if slow["answer"] else 0.0)

    killed: list[int] = []

    def kill_once(progress: Progress) -> None:
        if server.count >= 2 and not killed:
            killed.extend(titled(descendants(os.getpid()), "ray::ProposerActor")[:1])
            slow["answer"] = False
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    store = tmp_path / "run.sqlite"
    with Loopback(answer, keyless=True) as server:
        config = models_config(simulated_config(), server, DEAR, proposers=2, dollars=0.6, wall_s=60.0)
        reason = drive(spec_of(config, store), kill_once)
        cost = billed(server, DEAR)
    assert "budget of $0.6000" in reason
    assert killed
    with open_store(str(store)) as opened:
        assert check_journal(opened) == []
        journal = read_journal(opened)
        spent = opened.spent
    judged = {entry.evaluation.variant_id for entry in journal.searched}
    assert set(journal.variants) == judged, "what was paid for is judged"
    assert any(purpose is Purpose.VERIFY for _, purpose in journal.evaluations)
    assert 0 < spent.dollars <= cost <= 0.6
    assert spent.held_dollars > 0, "nobody knows what became of the killed one's requests"
    assert spent.dollars + spent.held_dollars <= 0.6
    assert spent.tokens > 0


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """One with a name short enough for the sockets that Ray puts there."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as name:
        yield Path(name)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_key_is_in_no_store_log_or_output_and_evaluators_have_none(
    simulated_file: Callable[..., Path],
    tmp_path: Path,
    short_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    evaluator_module: str,
) -> None:
    for name, value in {"ANTHROPIC_API_KEY": CANARY, "RAY_TMPDIR": str(short_folder), "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    script = [Failure(400, "invalid_request_error", "bad header", echo_key=True)]

    def answer(body: dict[str, Any]) -> Answer:
        return script.pop() if script else rewritten(body)

    store = tmp_path / "run.sqlite"
    config = simulated_file(evaluations=6, evaluator=f"{evaluator_module}:without_keys")
    with Loopback(answer) as server:
        model = f"{{provider: anthropic, name: claude-haiku-5-5, base_url: '{server.url}', max_tokens: 2000}}"
        config.write_text(config.read_text() + f"operators: [llm_optimize]\nmodels: [{model}]\n")
        with started(tmp_path, "run", str(config), "--store", str(store), "--no-export") as driver:
            wait_until(lambda: driver.poll() is not None, "end of the run")
        assert driver.returncode == 0, (tmp_path / "out.txt").read_text()
        assert all(CANARY in said for said in server.authorizations)
    with open_store(str(store)) as opened:
        assert {request.model for _, request in questions(opened)} == {"claude-haiku-5-5"}
    files = [path for folder in (tmp_path, short_folder) for path in folder.rglob("*") if path.is_file()]
    assert any("worker" in path.name for path in files), "Ray's logs were looked at"
    leaks = [path for path in files if CANARY.encode() in path.read_bytes()]
    assert leaks == []
