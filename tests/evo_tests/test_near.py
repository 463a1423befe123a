"""What is nearly a module that passed is not evaluated, where a model wrote it; what failed may be mended by a small change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from evo.records import Evaluation, NoProposal, Proposal, Stage, Status, Variant
from evo.search import near
from evo.search.engine import Engine
from evo.search.near import Near
from evo.search.settings import SearchSettings
from evo.search.toy import render
from operators.likeness import normal_text
from population_store.base import OutcomeEntry, PopulationStore
from population_store.opening import open_store
from tests.evo_tests.test_search_knowing import ASK, EXCHANGE, RULE, engine_on, header, passed

LINES = [f"    x = x * {number} + {number * number}" for number in range(2, 302)]


def module(**changed: str) -> str:
    """A long one; keyword arguments replace lines by their numbers."""
    lines = [changed.get(f"line_{place}", line) for place, line in enumerate(LINES)]
    return "\n".join([render({}), "", "def work(x):", *lines, "    return x", ""])


ONE_TOKEN = module(line_7="    x = x * 9 - 81")
TEN_LINES = module(**{f"line_{place}": f"    x = max(x, {place}.5)" for place in range(40, 50)})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PopulationStore]:
    with open_store(str(tmp_path / "run.sqlite"), header=header()) as opened:
        yield opened


def evaluated(engine: Engine, source: str, *, passes: bool = True, model: bool = True) -> bool:
    """Whether a proposal of this module is handed out for evaluation."""
    (work,) = engine.ask_proposals(1)
    engine.tell_proposal(work.request.number, Proposal(source, "s", (EXCHANGE,) if model else ()))
    leases = engine.ask_evaluations(1)
    for lease in leases:
        variant_id = lease.item.variant.variant_id
        failed = Evaluation(variant_id, Status.COMPILE_ERROR, Stage.COMPILE, "d", message="no")
        engine.tell_evaluation(lease.token, passed(lease.item.variant, 1.1) if passes else failed)
    return bool(leases)


def test_a_change_of_a_token_in_a_long_module_that_passed_is_not_evaluated(store: PopulationStore) -> None:
    engine = engine_on(store, ASK)
    assert evaluated(engine, module())
    assert not evaluated(engine, ONE_TOKEN)
    assert evaluated(engine, TEN_LINES)
    last = [entry.outcome for _, entry in store.journal() if isinstance(entry, OutcomeEntry)][-2]
    known = Variant("toy", module()).variant_id
    assert last == NoProposal(f"not evaluated: 99.5% of it is variant {known}, which passed", True, (EXCHANGE,))


def test_what_passed_in_an_earlier_session_counts_too(store: PopulationStore) -> None:
    assert evaluated(engine_on(store, ASK), module())
    assert not evaluated(engine_on(store, ASK), ONE_TOKEN)


def test_what_failed_may_be_mended_by_a_small_change(store: PopulationStore) -> None:
    engine = engine_on(store, ASK)
    assert evaluated(engine, module(), passes=False)
    assert evaluated(engine, ONE_TOKEN)


def test_rules_make_small_changes_on_purpose(store: PopulationStore) -> None:
    engine = engine_on(store, RULE)
    assert evaluated(engine, module(), model=False)
    assert evaluated(engine, ONE_TOKEN, model=False)


def test_the_threshold_is_a_setting(store: PopulationStore) -> None:
    with pytest.raises(ValueError, match="near_duplicate"):
        SearchSettings(near_duplicate=1.5)
    for threshold, found in ((1.0, False), (0.99, True), (0.999, False)):
        known = Near("toy", store, threshold)
        known.prepare()
        known.passed(Variant("toy", module()))
        assert (known.of(ONE_TOKEN) is not None) is found


def test_the_oldest_are_forgotten_and_short_or_broken_ones_do_no_harm(
    store: PopulationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near, "KNOWN", 3)
    known = Near("toy", store, 0.9)
    known.prepare()
    sources = [module(line_3=f"    x = x * {number} + 4") for number in range(1_000, 1_005)]
    for source in ("x = (", "", "x", *sources):
        known.passed(Variant("toy", source))
    found = known.of(sources[0])
    assert found is not None
    assert found[0] in {Variant("toy", source).variant_id for source in sources[2:]}
    assert known.of("x = (") is None
    assert known.of("y") is None


def test_where_thousands_are_alike_none_is_read_or_parsed_again(store: PopulationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Near("toy", store, 0.99)
    known.prepare()
    for number in range(50):
        known.passed(
            Variant("toy", module(line_3=f"    x = foo({number}, {number} * x, bar(x), x + {number}, 3)", line_9="    x = +x"))
        )
    parsed: list[str] = []

    def counted(source: str) -> str | None:
        parsed.append(source)
        return normal_text(source)

    monkeypatch.setattr(near, "normal_text", counted)
    monkeypatch.setattr(store, "variant", None)
    assert known.of(module(line_3="    x = foo(7, 7 * x, bar(x), x + 7, 4)", line_9="    x = +x")) is not None
    assert known.of(TEN_LINES) is None
    assert len(parsed) == 2


def test_long_modules_are_compared_by_the_smallest_of_their_hashes(
    store: PopulationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(near, "HASHES", 400)
    known = Near("toy", store, 0.97)
    known.prepare()
    known.passed(Variant("toy", module()))
    found = known.of(ONE_TOKEN)
    assert found is not None
    assert found[1] == pytest.approx(0.995, abs=0.02)
    assert known.of(TEN_LINES) is None
