"""Hypothesis strategies: any sequence of batches that an engine may record, with the worst values that it may hold."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from evo.records import (
    CaseResult,
    Configuration,
    Evaluation,
    Event,
    EventKind,
    Exchange,
    LatencyKind,
    NoProposal,
    Proposal,
    Request,
    Spent,
    Stage,
    Status,
    Trial,
    TrustLevel,
    Usage,
    Variant,
)
from population_store.base import Entry, EvaluationEntry, OutcomeEntry, Purpose, TrialEntry

NUMBERS = range(6)
TASKS = ("softmax", "gémm 'fp16'; --")

_names = st.text(max_size=8)
_texts = st.text(st.characters(), max_size=12)  # lone surrogates and NUL too: language models write them
_counts = st.integers(0, 2**53)
_amounts = st.floats(min_value=0, allow_nan=False)
_positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
_numbers = st.floats(allow_nan=False)
_configurations = st.dictionaries(_names, st.integers() | _numbers | st.booleans() | _texts, max_size=3).map(Configuration)
_sources = st.sampled_from(["x = 1\n", "# é 漢 🦊\r\n", "", "\x00"]) | st.text(max_size=12)
_usages = st.builds(Usage, _counts, _counts, _counts, _counts, _amounts)
_exchanges = st.lists(
    st.builds(Exchange, _names, _names, _names, _texts, _texts, _names, _names, _amounts, _usages), max_size=2
).map(tuple)
_failures = st.sampled_from([status for status in Status if status not in (Status.PASSED, Status.DUPLICATE)])
_trials = st.lists(
    st.builds(
        lambda case, configuration, latency: Trial(case, configuration, Status.PASSED, latency),
        _names,
        _configurations,
        _positive,
    )
    | st.builds(
        lambda case, configuration, status, message: Trial(case, configuration, status, None, message),
        _names,
        _configurations,
        _failures,
        _texts,
    ),
    max_size=3,
).map(tuple)

spent = st.builds(Spent, _counts, _counts, _amounts, _amounts, _amounts, _counts, _amounts, _counts)
"""Any used budget."""

_events = st.builds(Event, st.sampled_from(EventKind), st.sampled_from(TASKS), st.integers(0, 9), _names, _names, _texts)


@st.composite
def _tried(draw: st.DrawFn, number: int) -> TrialEntry:
    configuration = draw(_configurations)
    trials = [Trial(draw(_names), configuration, Status.PASSED, draw(_positive)) for _ in range(draw(st.integers(1, 2)))]
    return TrialEntry(number, draw(st.integers(0, 3)), draw(_names), tuple(trials))


@st.composite
def _case_results(draw: st.DrawFn) -> CaseResult:
    low, middle, high = sorted(draw(st.tuples(_positive, _positive, _positive)))
    ratios = tuple(draw(st.lists(_numbers, max_size=3)))
    latencies = (draw(_positive), draw(_positive))
    sizes = (draw(_counts), draw(st.integers(0, 2**70)))
    return CaseResult(draw(_names), draw(_configurations), draw(_numbers), *latencies, middle, low, high, *sizes, ratios)


@st.composite
def _evaluations(draw: st.DrawFn, variant_id: str) -> Evaluation:
    status = draw(st.sampled_from([Status.PASSED, Status.DUPLICATE]) | _failures)
    given: dict[str, Any] = {
        "plan_hash": draw(_names),
        "message": draw(_texts),
        "signature": draw(_texts),
        "trials": draw(_trials),
    }
    if status is Status.PASSED:
        given |= {"trust": draw(st.sampled_from(TrustLevel)), "latency_kind": draw(st.sampled_from(LatencyKind))}
        # Few fitnesses, so that some are equal.
        given |= {"fitness": draw(st.sampled_from([0.5, 1.5]) | _positive), "cases": (draw(_case_results()),)}
    if status is Status.DUPLICATE:
        given |= {"plan_hash": "plan", "duplicate_of": draw(_names)}
    given |= {"wall_s": draw(_amounts), "gpu_s": draw(_amounts), "noise_floor": draw(_amounts)}
    return Evaluation(variant_id, status, draw(st.sampled_from(Stage)), draw(_names), **given)


@st.composite
def _outcomes(draw: st.DrawFn, number: int, task: str) -> OutcomeEntry:
    exchanges = draw(_exchanges)
    if draw(st.booleans()):
        return OutcomeEntry(number, NoProposal(draw(_texts), draw(st.booleans()), exchanges), None)
    variant = Variant(task, draw(_sources))
    proposed = draw(st.just(variant.source) | _texts)  # a store may not assume that the two are the same text
    return OutcomeEntry(number, Proposal(proposed, draw(_texts), exchanges), variant)


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[list[Entry], Spent]]:
    """Batches that refer to nothing unrecorded, with repeated requests, outcomes and evaluations among them."""
    requests: dict[int, str] = {}
    outcomes: dict[int, Variant | None] = {}
    batches: list[tuple[list[Entry], Spent]] = []
    for _ in range(draw(st.integers(1, 4))):
        batch: list[Entry] = []
        for _ in range(draw(st.integers(0, 6))):
            batch.append(draw(_entries(requests, outcomes)))
        batches.append((batch, draw(spent)))
    return batches


@st.composite
def _entries(draw: st.DrawFn, requests: dict[int, str], outcomes: dict[int, Variant | None]) -> Entry:
    number = draw(st.sampled_from(NUMBERS))
    variant = outcomes.get(number)
    if variant is not None and not draw(st.integers(0, 3)):
        return draw(_tried(number))
    if variant is not None and draw(st.integers(0, 3)):
        return EvaluationEntry(number, draw(st.sampled_from(Purpose)), draw(_evaluations(variant.variant_id)))
    if number in requests and draw(st.integers(0, 3)):
        outcome = draw(_outcomes(number, requests[number]))
        outcomes.setdefault(number, outcome.variant)
        return outcome
    if number in requests and draw(st.booleans()):
        return draw(_events)
    parents = tuple(draw(st.lists(_names, max_size=2)))
    request = Request(number, draw(st.sampled_from(TASKS)), 0, draw(_names), draw(_names), parents, draw(_names))
    requests.setdefault(number, request.task)
    return request
