"""The shipped example with a language model: with an endpoint of our own, and simulated evaluations, it is a whole search."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from evo.commands.search import Overrides, going_on
from evo.config import RunConfig, read_config
from evo.errors import SpendLimitError
from evo.records import Proposal
from operators.models.ledger import Ledger
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal, read_journal
from tests.evo_tests.running_processes import ROOT, started, wait_until
from tests.operators_tests.loopback import Loopback, Message, reply
from tests.operators_tests.loopback_formats import asked

EXAMPLE = ROOT / "configs" / "llm.yaml"
_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
_OFF = re.compile(
    r"^( *)# (?=- \{provider|(?:label|max_tokens|requests_per_minute|tokens_per_minute|options|tokens|gpu_s|operators):)"
)


def answered(body: dict[str, Any]) -> Message:
    """The last kernel module of the prompt with a constant more; words where there is none."""
    modules = [text for text in _BLOCK.findall("".join(asked(body))) if "@triton.jit" in text and "CONFIG" in text]
    if not modules:
        return reply("I would have to see a kernel first.")
    name = f"SETTING_{len(modules[-1])}"
    return reply(f"Strategy: {name}.\n```python\n{modules[-1]}\n\n{name} = {len(body['messages'])}\n```")


def test_what_is_commented_out_in_the_example_is_valid_too(tmp_path: Path) -> None:
    config = read_config(EXAMPLE)
    assert [section.provider for section in config.models] == ["anthropic"]
    assert config.budget.dollars == 5
    assert RunConfig.from_text(config.to_text(), "a store") == config
    lines = EXAMPLE.read_text().splitlines()
    on = [re.sub(r"^    #   (\w+:)", r"      \1", _OFF.sub(r"\1", line)) for line in lines]
    path = tmp_path / "on.yaml"
    path.write_text("\n".join(on))
    everything = read_config(path)
    assert [section.key for section in everything.models] == ["careful", "claude-haiku-5-5", "own server"]
    assert set(everything.models[0].options) == {"effort", "batch", "record"}
    assert everything.operators is not None
    assert len(yaml.safe_load(path.read_text())["budget"]) == 5
    from evo.cluster.setup import check_models
    from evo.registry import operator_names

    check_models(everything)
    operator_names(everything)


def ended(dollars: float | None, tokens: int | None) -> str:
    """What is said where nothing is left for a request."""
    with pytest.raises(SpendLimitError) as caught:
        asyncio.run(Ledger(dollars, tokens).reserve(2.0, 2_000))
    return str(caught.value)


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        (ended(1.0, None), "resume 'my runs/x' --dollars D"),
        (ended(None, 1_000), "run FILE --continue"),
        ("the budget of 5 dollars is used", "resume 'my runs/x' --dollars D"),
        ("the budget of 100 tokens is used", "run FILE --continue"),
        ("the budget of 100 GPU seconds is used", "run FILE --continue"),
        ("the budget of 100 wall seconds is used", "resume 'my runs/x' --wall-s S"),
        ("the budget of 25 evaluations is used", "resume 'my runs/x' --evaluations N"),
    ],
)
def test_the_end_of_a_budget_says_how_to_give_more_of_it(reason: str, command: str) -> None:
    assert going_on("my runs/x", reason) == f"triton-evolve {command}"
    if "dollars" in reason:
        assert Overrides(dollars=7.5).apply(read_config(EXAMPLE)).budget.dollars == 7.5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_key_and_an_endpoint_are_all_that_the_example_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ANTHROPIC_API_KEY": "sk-test", "NO_PROXY": "127.0.0.1", "ANTHROPIC_CONFIG_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_PROFILE", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    config, store = tmp_path / "llm.yaml", tmp_path / "llm.sqlite"
    with Loopback(answered) as server:
        text = EXAMPLE.read_text().replace(
            "  - provider: anthropic\n", f"  - provider: anthropic\n    base_url: '{server.url}'\n"
        )
        config.write_text(f"{text}\nevaluator: simulated\n")
        arguments = ("run", str(config), "--store", str(store), "--evaluations", "25", "--no-export")
        with started(tmp_path, *arguments) as process:
            wait_until(lambda: process.poll() is not None, "the end of the run")
        said = (tmp_path / "out.txt").read_text()
        assert process.returncode == 0, said
        assert "the budget of 25 evaluations is used" in said
        assert server.count > 0
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        found = read_journal(opened)
        spent = opened.spent
    assert 0 < spent.dollars <= 5
    assert spent.tokens > 0
    by_models = {number for number, request in found.requests.items() if request.model == "claude-sonnet-5-5"}
    outcomes = [found.outcomes[number].outcome for number in by_models]
    assert any(isinstance(outcome, Proposal) for outcome in outcomes)
    assert by_models < set(found.requests), "rules take part as well"
