"""Searches with a model file: a real small one from nothing to a report, and one that cannot be used beside one that can."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from evo.records import Proposal
from evo.reporting.accuracy import read_accuracy
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal, read_journal
from tests.evo_tests.running_processes import ROOT, descendants, started, titled, wait_until
from tests.evo_tests.test_config_llm import answered
from tests.operators_tests.loopback import Loopback
from tests.operators_tests.test_models_local import small_model

pytestmark = pytest.mark.slow


def search(folder: Path, changes: dict[str, object], evaluations: int) -> tuple[str, list[int]]:
    """Runs the shipped example with changes to its end; what it printed, and processes of a model that are left."""
    document = yaml.safe_load((ROOT / "configs" / "local.yaml").read_text()) | changes
    (folder / "local.yaml").write_text(yaml.safe_dump(document))
    arguments = ("run", "local.yaml", "--store", "local.sqlite", "--evaluations", str(evaluations), "--no-export")
    seen: set[int] = set()
    with started(folder, *arguments) as process:

        def ended() -> bool:
            seen.update(titled(descendants(process.pid), "local_child"))
            return process.poll() is not None

        wait_until(ended, "the end of the run", 900.0)
        said = (folder / "out.txt").read_text()
        assert process.returncode == 0, said
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in seen), "the end of the model's process", 20.0)
    return said, sorted(seen)


@pytest.mark.timeout(1_000)
def test_a_tier_that_cannot_be_used_is_one_line_and_the_search_goes_on(tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("I am no model")
    with Loopback(answered, keyless=True) as server:
        options = {"free": True, "server": "vllm", "max_retries": 0}
        models = [
            {"provider": "local", "name": "broken", "grammar": ["skeleton"], "options": {"file": str(tmp_path / "text.gguf")}},
            {"provider": "openai", "name": "served", "base_url": server.url, "grammar": ["skeleton"], "options": options},
        ]
        changes = {"models": models, "evaluator": "simulated", "operators": ["llm_optimize"], "tasks": ["softmax"]}
        said, _ = search(tmp_path, changes, 20)
        assert any("structured_outputs" in body for body in server.bodies)
    lines = [line for line in said.splitlines() if "broken failed" in line]
    assert len(lines) == 1
    assert re.search(r"broken failed \d+ times in a row: broken: \S+text\.gguf is no GGUF model file", lines[0])
    assert said.count("served: replies leave the grammar that was sent with the request") == 1, (
        "this server ignores what it is sent"
    )
    with open_store(str(tmp_path / "local.sqlite")) as store:
        assert check_journal(store, finished=True) == []
        tiers = read_accuracy(store).tiers
    assert tiers["served"][0].left > 0
    assert tiers["broken"][0].usable == 0


@pytest.mark.timeout(1_000)
def test_a_real_small_model_searches(tmp_path: Path) -> None:
    options = {**small_model(), "context": 8_192}
    models = [{"provider": "local", "name": "small", "grammar": ["skeleton"], "max_tokens": 400, "options": options}]
    changes = {"models": models, "operators": ["llm_optimize", "llm_repair"], "tasks": ["softmax"]}
    search(tmp_path, changes, 5)
    with open_store(str(tmp_path / "local.sqlite")) as store:
        assert check_journal(store, finished=True) == []
        found = read_journal(store)
        (rounds,) = read_accuracy(store).tiers.values()
    proposed = [
        entry.outcome for entry in found.outcomes.values() if isinstance(entry.outcome, Proposal) and entry.outcome.exchanges
    ]
    assert proposed, "held to a skeleton, it writes modules"
    assert sum(part.left for part in rounds) == 0
    assert sum(part.held for part in rounds) >= len(proposed)
