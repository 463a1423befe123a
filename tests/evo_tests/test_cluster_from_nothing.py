"""A run on a real local Ray and real HTTP that has a reference and a model, but no kernel to start from."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evo.config import RunConfig
from evo.records import Request
from evo.tasks.loading import load_task, starting_sources
from population_store.base import OutcomeEntry
from population_store.opening import open_store
from tests.evo_tests.journal_check import check_journal
from tests.evo_tests.test_cluster_models import DEAR, models_config
from tests.evo_tests.test_cluster_run import drive, spec_of
from tests.operators_tests.loopback import Loopback, Message, reply
from tests.operators_tests.loopback_formats import asked

TASK = "import dataclasses\nfrom evo.tasks.softmax import TASK\n\nTASK = dataclasses.replace(TASK, starting_kernels=())\n"


@pytest.mark.usefixtures("local_ray")
def test_a_model_writes_the_first_kernel_and_improves_on_it(simulated_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TASK)
    (kernel,) = starting_sources(load_task("softmax"))
    numbers = itertools.count()
    prompts: list[str] = []

    def answer(body: dict[str, Any]) -> Message:
        prompts.append("".join(asked(body)))
        number = next(numbers)
        module = kernel if number else kernel.replace("return y", "return (y")
        return reply(f"Strategy: setting {number}.\n```python\n{module}\n\nSETTING_{number} = {number}\n```")

    store = tmp_path / "run.sqlite"
    with Loopback(answer, keyless=True) as server:
        config = models_config(simulated_config(), server, DEAR, evaluations=6)
        search = dataclasses.replace(config.search, pending_limit=2)
        changes = {"tasks": (str(tmp_path / "mine.py"),), "operators": ("llm_generate", "llm_optimize"), "search": search}
        config = config.model_copy(update=changes)
        assert "6 evaluations" in drive(spec_of(config, store))
    with open_store(str(store)) as opened:
        assert check_journal(opened, finished=True) == []
        journal = [entry for _, entry in opened.journal()]
        assert opened.ranking("softmax")
    requests = {entry.number: entry for entry in journal if isinstance(entry, Request)}
    first = next(entry for entry in journal if isinstance(entry, OutcomeEntry))
    assert requests[first.number].operator == "llm_generate"
    assert requests[first.number].parents == ()
    assert len(first.outcome.exchanges) in (1, 2), "a module that does not parse is asked for once more"
    assert {request.operator for request in requests.values()} == {"llm_generate", "llm_optimize"}
    generating = [prompt for prompt in prompts if "from nothing but its description" in prompt]
    assert generating
    assert not any("softmax_kernel" in prompt for prompt in generating)
    assert any("Your reply could not be used" in prompt for prompt in prompts)
