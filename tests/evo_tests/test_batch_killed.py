"""Proposals through Message Batches, killed while one is under way: the same command fetches its replies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evo.commands.airgap import propose_command
from evo.records import EventKind
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal, read_journal
from tests.evo_tests.running_processes import started, wait_until
from tests.evo_tests.test_airgap import judge_starts
from tests.evo_tests.test_cluster_models import rewritten
from tests.operators_tests.loopback import Loopback
from tests.operators_tests.model_harness import quiet_environment


@pytest.mark.slow
def test_a_batch_that_was_under_way_at_a_kill_is_fetched_and_not_paid_again(
    simulated_file: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_environment(monkeypatch, tmp_path, ["anthropic"])
    here, there, back, out = (tmp_path / name for name in ("here.sqlite", "there.sqlite", "e0.jsonl", "p1.jsonl"))
    with Loopback(rewritten, looks=10**6) as server:
        batch = "options: {batch: true, batch_size: 4, batch_window_s: 0.3, batch_poll_s: 0.1}"
        model = f"{{provider: anthropic, name: claude-haiku-5-5, base_url: '{server.url}', max_tokens: 2000, {batch}}}"
        config = simulated_file(evaluations=14)
        config.write_text(config.read_text() + f"operators: [llm_optimize]\nmodels: [{model}]\n")
        propose_command(str(here), 4, tmp_path / "p0.jsonl", None, config)
        judge_starts(there, tmp_path / "p0.jsonl", back)
        with started(tmp_path, "propose", str(here), "--n", "4", "--in", str(back), "--out", str(out)) as process:
            wait_until(lambda: any(event.kind is EventKind.BATCH for event in events(here)), "a batch that is recorded")
            process.kill()
        created, asked = server.created, server.count
        with open_store(str(here)) as store:
            assert store.spent.held_dollars > 0
        server.end_batches()
        assert propose_command(str(here), 4, out, back, None) == 0
        assert (created, asked) == (1, 4)
    with open_store(str(here)) as store:
        assert check_journal(store) == []
        found, spent = read_journal(store), store.spent
    exchanges = [item for entry in found.outcomes.values() for item in entry.outcome.exchanges]
    assert [item.request_id for item in exchanges].count("batch0") == 4
    assert spent.dollars == pytest.approx(sum(item.usage.dollars for item in exchanges))
    assert spent.held_dollars == pytest.approx(0.0, abs=1e-9), "what was held for the killed one was settled by its bill"


def events(path: Path) -> tuple[Any, ...]:
    with open_store(str(path)) as store:
        return store.events()
