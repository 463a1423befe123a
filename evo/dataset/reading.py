"""Reads population stores as what data sets are made of: variants with where they come from and what the judge said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from evo.errors import InputError
from evo.records import Evaluation, LatencyKind, Proposal, Request, Status, Variant
from evo.tracing.targets import TARGETS
from operators.base import Parent
from population_store.base import EvaluationEntry, OutcomeEntry, PopulationStore, Purpose, RunHeader
from population_store.opening import open_store

DEFAULT_TARGET = "cuda:90"
"""Where neither the run nor its device tells."""


@dataclass(frozen=True)
class Made:
    """One variant of a run, as the request that first gave it made it.

    Attributes:
        request: The request.
        proposal: Its outcome.
        variant_id: Of what it proposed.
        search: The verdict of the search; None while it is awaited.
        verify: The newest verification.
    """

    request: Request
    proposal: Proposal
    variant_id: str
    search: Evaluation | None
    verify: Evaluation | None

    @property
    def verdict(self) -> Evaluation | None:
        """The one that counts."""
        return self.verify or self.search

    @property
    def passed(self) -> Evaluation | None:
        """The verdict, if the judge found it correct by running it (a simulated verdict is of no kernel)."""
        found = self.verdict
        correct = found is not None and found.status is Status.PASSED and found.latency_kind is not LatencyKind.SIMULATED
        return found if correct else None

    @property
    def failed(self) -> Evaluation | None:
        """The verdict, if the judge refused it."""
        found = self.verdict
        return found if found is not None and found.status not in (Status.PASSED, Status.DUPLICATE) else None

    @property
    def source(self) -> str:
        """Its module."""
        return self.proposal.source

    @property
    def as_parent(self) -> Parent:
        """As prompts show it."""
        return Parent(Variant(self.request.task, self.source), self.verdict, self.proposal.strategy)

    @property
    def plan_hash(self) -> str:
        """Of the search: what it launches and may be tuned to; empty where nothing was traced."""
        return self.search.plan_hash if self.search is not None else ""


@dataclass(frozen=True)
class Run:
    """One store.

    Attributes:
        header: See `RunHeader`.
        target: Key of `TARGETS`.
        made: By variant id, in order of their first requests.
        seeds: Sources that torch.compile gave.
    """

    header: RunHeader
    target: str
    made: Mapping[str, Made]
    seeds: frozenset[str]

    @property
    def triton(self) -> str:
        """The version that kernels were compiled with; empty where the run does not say."""
        return str(json.loads(self.header.versions).get("triton", ""))

    @property
    def key_variables(self) -> frozenset[str]:
        """Environment variables that the run was told to take keys of models from."""
        options = [section.get("options", {}) for section in json.loads(self.header.config).get("models", ())]
        return frozenset(str(given["key_env"]) for given in options if "key_env" in given)

    def parents(self, made: Made) -> tuple[Made, ...]:
        """Variants that a request was given, of those that are known."""
        return tuple(self.made[item] for item in made.request.parents if item in self.made)

    def of_task(self, task: str) -> tuple[Made, ...]:
        """The variants of one task."""
        return tuple(item for item in self.made.values() if item.request.task == task)


def read_run(place: str) -> Run:
    """Reads a store; it may be in use by a run.

    Raises:
        StoreError: There is no such store, or it cannot be read by this version.
        InputError: It has no verdict yet.
    """
    with open_store(place) as store:
        header = store.header
        made = _made(store)
    if not any(item.verdict for item in made.values()):
        raise InputError(place, given="a store without a verdict", action="let its run evaluate something first")
    config = json.loads(header.config)
    seeds = frozenset(source for sources in config.get("seeds", {}).values() for source in sources)
    return Run(header, _target(str(config.get("target", "auto")), made), made, seeds)


def _made(store: PopulationStore) -> dict[str, Made]:
    requests: dict[int, Request] = {}
    proposals: dict[str, tuple[Request, Proposal]] = {}
    verdicts: dict[Purpose, dict[str, Evaluation]] = {purpose: {} for purpose in Purpose}
    for _, entry in store.journal():
        if isinstance(entry, Request):
            requests[entry.number] = entry
        elif isinstance(entry, OutcomeEntry):
            if isinstance(entry.outcome, Proposal) and entry.variant is not None:
                proposals.setdefault(entry.variant.variant_id, (requests[entry.number], entry.outcome))
        elif isinstance(entry, EvaluationEntry):
            known = verdicts[entry.purpose]
            variant_id = entry.evaluation.variant_id
            if entry.evaluation.status is not Status.DUPLICATE or variant_id not in known:
                known[variant_id] = entry.evaluation
    return {
        variant_id: Made(
            request, proposal, variant_id, verdicts[Purpose.SEARCH].get(variant_id), verdicts[Purpose.VERIFY].get(variant_id)
        )
        for variant_id, (request, proposal) in proposals.items()
    }


def _target(configured: str, made: Mapping[str, Made]) -> str:
    if configured in TARGETS:
        return configured
    devices = {item.search.device.removesuffix(" (modelled)") for item in made.values() if item.search is not None}
    return next((key for key, target in TARGETS.items() if devices & {key, target.name}), DEFAULT_TARGET)
