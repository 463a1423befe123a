"""`triton-evolve propose`, `evaluate` and `merge`: one search on two machines, of which one has a model and the other one the device."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import json
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from evo.commands import search
from evo.commands.carrying import hand_over, open_merged, standing_of, tasks_here, write_rest
from evo.commands.interruption import INTERRUPTED, Interruption
from evo.commands.readiness import check_names, check_quickly, check_unchanged, load_run
from evo.commands.seeding import with_seeds
from evo.config import RunConfig, read_config
from evo.errors import ConfigError, StoreError
from evo.records import EventKind, LatencyKind, Spent
from evo.registry import evaluator_factory
from evo.search.progress import Progress
from population_store.base import PopulationStore, RunHeader
from population_store.opening import open_store

EVALUATED = "every proposal is evaluated"
AS_RECORDED = search.Overrides()


def propose_command(
    store: str, wanted: int, out: Path, incoming: Path | None, config: Path | None, limits: search.Overrides = AS_RECORDED
) -> int:
    """Makes proposals until `wanted` of them await evaluation, and writes what the other machine lacks; no kernel is evaluated.

    Given again, after an end of any kind, it goes on where it was; where nothing is missing it writes the same bundle.

    Args:
        store: Path or URL.
        wanted: Variants that await evaluation.
        out: The bundle.
        incoming: A bundle (or store) of the other machine, merged before.
        config: Begins a run.
        limits: Of the budget, where they are others than the run began with.

    Returns:
        Exit status.

    Raises:
        InputError: Store, bundle, configuration or task cannot be used, or a key is missing.
    """
    place = search.absolute_store(store)
    if config is not None:
        _begin(config, place)
    with open_merged(place, [] if incoming is None else [incoming], typer.echo, create=False) as opened:
        before, reason = standing_of(opened), ""
        handed_over = before.ended_by(EventKind.PROPOSED)
        if len(before.awaiting) < wanted and not (handed_over and before.starting):
            if handed_over:
                typer.echo(
                    "a bundle of these proposals was written before: what follows is in the new one only, so evaluate that"
                )
            handed_over = False
            with Interruption() as interruption:
                reason, spent = _propose(opened, _recorded(opened.header, place, limits), wanted, interruption)
            if interruption.reason is not None:
                typer.echo(f"{reason}; everything finished is recorded. Go on with the same command")
                return INTERRUPTED
        else:
            spent = opened.spent
        after = standing_of(opened)
        text = f"{len(after.awaiting)} variants await evaluation" + (f": {reason}" if reason else "")
        hand_over(opened, EventKind.PROPOSED, text, spent, once=handed_over)
        bundle = write_rest(opened, EventKind.EVALUATED, out)
    typer.echo(f"{out}: {len(after.awaiting)} variants to evaluate, {len(after.awaiting) - len(before.awaiting)} of them new")
    if reason:
        typer.echo(f"fewer than {wanted}: {reason}")
    typer.echo(f"entries:      {bundle.base.entries} to {bundle.head}")
    typer.echo("next, there:  triton-evolve evaluate STORE --in BUNDLE")
    return 0


def evaluate_command(store: str, incoming: Path, out: Path | None, limits: search.Overrides = AS_RECORDED) -> int:
    """Evaluates what a bundle proposes, and writes what the other machine lacks. Needs neither network nor key.

    Given again, after an end of any kind, it goes on where it was; where everything is evaluated it says so.

    Args:
        store: Path or URL; made from the bundle where there is none.
        incoming: The bundle (or store) of the other machine.
        out: The bundle with the evaluations; None: beside `incoming`, as ``evaluated-NAME``.
        limits: Of the budget, where they are others than the run began with; and the address of a Ray cluster.

    Returns:
        Exit status.

    Raises:
        InputError: Store, bundle or task cannot be used.
        DeviceError: Every evaluator failed repeatedly.
    """
    place = search.absolute_store(store)
    out = out or incoming.with_name(f"evaluated-{incoming.name}")
    with open_merged(place, [incoming], typer.echo, create=True) as opened:
        before, header = standing_of(opened), opened.header
        if before.ended_by(EventKind.EVALUATED):
            write_rest(opened, EventKind.PROPOSED, out)
            typer.echo(f"nothing to do: everything that was proposed is evaluated, see {out}")
            return 0
    config = _to_evaluate(header, place, limits, before.latency_kind)
    try:
        reason, interrupted = _evaluate(config, place)
    except (SystemExit, KeyboardInterrupt):  # the handler that Ray has while it starts, or the second signal
        reason, interrupted = "interrupted at once", True
    if interrupted:
        typer.echo(f"{reason}; everything finished is recorded. Go on with the same command")
        return INTERRUPTED
    with open_store(place, write=True) as opened:
        hand_over(opened, EventKind.EVALUATED, reason, opened.spent, once=False)
        bundle = write_rest(opened, EventKind.PROPOSED, out)
        after = standing_of(opened)
    typer.echo(
        f"{out}: {after.evaluated - before.evaluated} evaluated now, {after.passed} of {after.evaluated} passed in all; {reason}"
    )
    typer.echo(f"entries:      {bundle.base.entries} to {bundle.head}")
    typer.echo("next, there:  triton-evolve propose STORE --in BUNDLE --out BUNDLE")
    return 0


def merge_command(store: str, sources: Sequence[Path]) -> int:
    """Appends to a store what bundles and other stores of its run have beyond it; it is made from them where there is none.

    Returns:
        Exit status.

    Raises:
        InputError: A source cannot be used, is of another run, or went on in another way than the store.
    """
    with open_merged(search.absolute_store(store), sources, typer.echo, create=True) as opened:
        standing = standing_of(opened)
    typer.echo(f"{store}: {standing.evaluated} evaluated, {len(standing.awaiting)} variants await evaluation")
    return 0


def _begin(path: Path, place: str) -> None:
    """Makes the store of a new run; one of the same configuration may be there already."""
    config = read_config(path)
    if config.target == "auto":
        action = "name the target of the device that will evaluate, e.g. cuda:90: nothing here tells it"
        raise ConfigError(f"{path}: target", given="auto", action=action)
    config = config.model_copy(update={"store": place})
    if "://" not in place and Path(place).exists():
        with open_store(place) as opened:
            recorded = RunConfig.from_text(opened.header.config, f"{place}: its configuration")
            if recorded.model_copy(update={"seeds": {}}) != config:
                raise StoreError(
                    place, action=f"holds a run of another configuration than {path}: leave --config out to go on with it"
                )
        return
    check_quickly(config, str(path))
    config = with_seeds(config)
    tasks = load_run(config, str(path))
    if config.evaluator == "kernels":  # others need not judge
        from evo.commands.weak_tasks import refuse_weak_tasks

        refuse_weak_tasks(config, tasks)
    open_store(place, header=search.make_header(config, tasks)).close()


def _recorded(header: RunHeader, place: str, limits: search.Overrides) -> RunConfig:
    config = RunConfig.from_text(header.config, f"{place}: its configuration")
    cluster = config.cluster.model_copy(update={"address": None})
    return tasks_here(limits.apply(config.model_copy(update={"store": place, "cluster": cluster})), header, place)


def _propose(store: PopulationStore, config: RunConfig, wanted: int, interruption: Interruption) -> tuple[str, Spent]:
    """Why there are fewer than wanted, or nothing; and what is spent by then."""
    from evo.cluster.proposing_here import make_proposals
    from evo.cluster.setup import operator_infos, task_setups
    from evo.search.engine import Engine

    check_unchanged(load_run(config, str(config.store)), json.loads(store.header.tasks))
    for endpoint in config.endpoints:
        typer.echo(f"asks {endpoint}, as the store's configuration says")
    for section in config.models:
        if section.provider == "files":
            folder = section.options["folder"]
            typer.echo(f"{section.key}: requests in {folder}/requests, replies awaited in {folder}/replies")
    engine = Engine(
        seed=config.seed,
        settings=dataclasses.replace(config.search, pending_limit=max(config.search.pending_limit, wanted)),
        budget=config.budget,
        tasks=task_setups(config),
        operators=operator_infos(config),
        store=store,
        clock=time.monotonic,
        models=list(config.model_labels),
    )
    reason = asyncio.run(make_proposals(engine, config, wanted, lambda: interruption.reason))
    return reason, engine.spent


def _to_evaluate(header: RunHeader, place: str, limits: search.Overrides, latency_kind: LatencyKind | None) -> RunConfig:
    """The configuration for a session that evaluates: no proposers, no key, and a device as before."""
    from evo.cluster.setup import load_tasks

    config = _recorded(header, place, limits)
    device = config.cluster.device
    if latency_kind is not None:  # a store must not mix estimates and measurements
        device = "gpu" if latency_kind is LatencyKind.MEASURED else "cpu"
    cluster = config.cluster.model_copy(update={"device": device, "proposers": 0})
    config = config.model_copy(update={"cluster": cluster, "library": ()})
    check_names(config, place)
    evaluator_factory(config.evaluator)
    check_unchanged(load_tasks(config), json.loads(header.tasks))
    made_for, here = json.loads(header.versions).get("triton"), importlib.metadata.version("triton")
    if made_for != here:
        typer.echo(f"note: the run was begun with Triton {made_for}; this machine has {here}")
    return config


class _Rest:
    """What still awaits evaluation, by the newest look at it."""

    def __init__(self) -> None:
        self.done = False

    def observe(self, progress: Progress) -> None:
        """Takes a look."""
        waiting = progress.leased + sum(task.pending_evaluations for task in progress.tasks)
        self.done = waiting == 0 and progress.phase not in ("verify", "finished")


def _evaluate(config: RunConfig, place: str) -> tuple[str, bool]:
    """Why the session ended, and whether by a signal."""
    from evo.cluster.devices import resolve_device
    from evo.cluster.running import Driver
    from evo.cluster.session import ray_session
    from evo.cluster.spec import RunSpec
    from evo.commands.console import make_console
    from evo.reporting.progress import progress_display

    rest = _Rest()
    with Interruption() as interruption, ray_session(config.cluster) as capacity:
        interruption.install()  # Ray has put its own handlers in place
        if interruption.reason is not None:
            return interruption.reason, True
        device, target, model = resolve_device(config, capacity, lambda: interruption.reason)
        cluster = config.cluster.model_copy(update={"device_model": model})
        config = config.model_copy(update={"target": target, "cluster": cluster})
        kind = search.latency_kind_on(config, device)
        with progress_display(make_console(), kind) as display:

            def observe(progress: Progress) -> None:
                rest.observe(progress)
                display(progress)

            def over() -> str | None:
                return interruption.reason or (EVALUATED if rest.done else None)

            reason = Driver(RunSpec(config, place, None, device), capacity, observe, over).run()
    return interruption.reason or reason, interruption.reason is not None
