"""What docs/adding.md shows works: its rewrite makes children that are traced, and its exploit is one of ours."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from evo.errors import SpendLimitError
from evo.knobs import read_knobs
from evo.records import Exchange, NoProposal, Proposal, Variant
from evo.tasks.loading import load_task, starting_sources
from evo.tracing.plan import LaunchPlan
from evo.tracing.tracer import Tracer
from operators.base import Context, Operator, Parent
from operators.models.base import Prompt, RequestError
from operators.models.ledger import Ledger

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adding.md").read_text(encoding="utf-8")
CONTEXT = Context("softmax", "", "softmax", "", frozenset(), "cuda:90", "3.9")


def shown(kind: str) -> tuple[str, str]:
    """Name and text of what the page shows of a kind."""
    ((name, text),) = re.findall(rf"<!-- {kind}: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    return name, text


@pytest.fixture
def rewrite(tmp_path: Path) -> Operator:
    """The operator of the page."""
    module = read_in(tmp_path, "operator")
    operator: Operator = module.StreamLoads()
    return operator


def read_in(folder: Path, kind: str) -> ModuleType:
    """What the page shows of a kind, as a module."""
    name, text = shown(kind)
    (folder / name).write_text(text)
    spec = importlib.util.spec_from_file_location(f"{kind}_of_the_page", folder / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def proposed(operator: Operator, source: str) -> Proposal | NoProposal:
    return asyncio.run(operator.propose((Parent(Variant("softmax", source)),), CONTEXT, np.random.default_rng(0)))


def test_the_rewrite_of_the_page_makes_a_child_that_is_traced(rewrite: Operator) -> None:
    task = load_task("softmax")
    (source, *_) = starting_sources(task)
    child = proposed(rewrite, source)
    assert isinstance(child, Proposal), child
    assert child.source.count('eviction_policy="evict_first"') == source.count("tl.load(")
    tracer = Tracer("cuda:90")
    try:
        plan = tracer.trace(child.source, task, task.small_cases[0], read_knobs(child.source).default)
    finally:
        tracer.close()
    assert isinstance(plan, LaunchPlan), plan
    again = proposed(rewrite, child.source)
    assert isinstance(again, NoProposal)
    assert "no load without an eviction policy" in again.reason


def test_the_model_of_the_page_answers_fails_in_bounds_and_pays_first(tmp_path: Path) -> None:
    client = read_in(tmp_path, "model").ProgramModel
    prompt = Prompt(("Rules.",), "Question.", "hash", 100)
    ledger = Ledger(None, 20_000)

    def asked(text: str, timeout_s: float = 20.0) -> Exchange:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        exchange: Exchange = asyncio.run(client("m", ledger=ledger, program=str(program), timeout_s=timeout_s).complete(prompt))
        return exchange

    assert asked("cat").reply == prompt.text
    assert ledger.spent_tokens > 100
    with pytest.raises(RequestError, match=r"no reply within 0\.2 s"):
        asked("exec sleep 30", 0.2)
    with pytest.raises(RequestError, match="cannot be run"):
        asyncio.run(client("m", ledger=ledger, program=str(tmp_path / "absent")).complete(prompt))
    with pytest.raises(SpendLimitError):
        asyncio.run(client("m", ledger=Ledger(None, 10), program="/bin/cat").complete(prompt))
    assert ledger.reserved_tokens == 0


def test_the_exploit_of_the_page_is_that_of_the_suite() -> None:
    name, text = shown("exploit")
    assert text in (ROOT / "tests" / "evo_tests" / "exploits" / "kernels" / name).read_text()


def test_files_that_the_page_names_are_there() -> None:
    for path in re.findall(r"`((?:evo|operators|tests|population_store)/[\w/.]+)`", PAGE):
        assert {"NAME", "PROVIDER"} & {Path(path).stem} or (ROOT / path).exists(), path
