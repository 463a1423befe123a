"""Searches with a model file: a real small one from nothing to a report, and one that cannot be used beside one that can."""

from __future__ import annotations

import re
import sys
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
        changes: dict[str, object] = {
            "models": models,
            "evaluator": "simulated",
            "operators": ["llm_optimize"],
            "tasks": ["softmax"],
        }
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


def served(folder: Path, *more: str) -> dict[str, object]:
    """Two tiers with servers that the run starts: one whose program is missing, and one that works."""
    command = f"{sys.executable} -m tests.operators_tests.small_server --port {{port}} --pids {folder / 'pids'} {' '.join(more)}"
    models = [
        {"provider": "served", "name": "broken", "options": {"command": "/nothing/llama-server --port {port}"}},
        {"provider": "served", "name": "own", "options": {"command": command}},
    ]
    return {"models": models, "evaluator": "simulated", "operators": ["llm_optimize"], "tasks": ["softmax"]}


def pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def gone(folder: Path) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids(folder))


@pytest.mark.timeout(1_000)
def test_a_server_is_started_by_the_run_and_ends_with_it_and_one_that_cannot_be_started_is_one_line(tmp_path: Path) -> None:
    said, _ = search(tmp_path, served(tmp_path), 20)
    wait_until(lambda: gone(tmp_path), "end of the server and its worker", 30.0)
    assert len(pids(tmp_path)) == 2, "started once"
    lines = [line for line in said.splitlines() if "broken failed" in line]
    assert len(lines) == 1
    assert "its server ended (status 127): /nothing/llama-server cannot be started: No such file or directory" in lines[0]
    with open_store(str(tmp_path / "local.sqlite")) as store:
        assert check_journal(store, finished=True) == []
        tiers = read_accuracy(store).tiers
    assert tiers["own"][0].usable > 0
    assert tiers["broken"][0].usable == 0


@pytest.mark.timeout(1_000)
def test_no_server_is_left_of_a_run_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "local.yaml").write_text(
        yaml.safe_dump(yaml.safe_load((ROOT / "configs" / "local.yaml").read_text()) | served(tmp_path))
    )
    with started(tmp_path, "run", "local.yaml", "--store", "local.sqlite", "--no-export") as process:
        wait_until(lambda: len(pids(tmp_path)) == 2 or process.poll() is not None, "start of the server", 300.0)
        assert not gone(tmp_path), (tmp_path / "out.txt").read_text()
        process.kill()
        process.wait()
    wait_until(lambda: gone(tmp_path), "end of the server and its worker", 60.0)


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
