"""`triton-evolve bench`: its commands, and the name of a suite where the name of a command stands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from evo.commands.given import check_given

COMMAND = "suite"
"""What such a name is an argument of."""


class SuiteGroup(TyperGroup):
    """A group in which whatever is none of its commands is a suite; which suites there are is known to `evo.suites.registry`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """See click."""
        named = bool(args) and args[0] not in self.commands and not args[0].startswith("-")
        return super().resolve_command(ctx, [COMMAND, *args] if named else args)


bench = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    cls=SuiteGroup,
    help="Measures parts of this program on this machine, or runs a public suite of kernels: bench SUITE.",
)


@bench.command(name="evaluator")
def bench_evaluator(
    task: Annotated[str, typer.Option(help="Task name or path of a task file.")] = "softmax",
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of the measured window, after warm-up.")] = 120.0,
    device: Annotated[
        str, typer.Option(help="gpu; cpu (interpreted, modelled latencies); auto: a GPU if there is one.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of the candidates.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for bench_evaluator.json and .md.")] = None,
    commit: Annotated[str | None, typer.Option(help="Named in the results, for copies without git history.")] = None,
) -> None:
    """Feeds the evaluator untuned candidates, all different, and shows how many an hour it judges and where its time goes."""
    check_given(task=task)
    from evo.commands.bench import bench_evaluator_command

    raise typer.Exit(bench_evaluator_command(task, seconds, device, seed, out, commit))


@bench.command(name="cluster")
def bench_cluster(
    evaluators: Annotated[int, typer.Option(min=1, max=10_000, help="Simulated evaluators.")] = 1_000,
    rate: Annotated[float, typer.Option(min=1.0, help="Evaluations per second that they could make together.")] = 600.0,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of the measured window, after warm-up.")] = 30.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the search and the verdicts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for bench_cluster.json and .md.")] = None,
    commit: Annotated[str | None, typer.Option(help="Named in the results, for copies without git history.")] = None,
) -> None:
    """Runs the engine with simulated evaluators and an instant model, and shows what an evaluation costs besides itself."""
    from evo.commands.bench_cluster import bench_cluster_command

    raise typer.Exit(bench_cluster_command(evaluators, rate, seconds, seed, out, commit))


@bench.command(name="suite")
def bench_suite(
    suite: Annotated[str, typer.Argument(help="tritonbench-g, tritonbench-t, tritonbench-revised, kernelbench-1, -2, -3, rocm.")],
    suite_root: Annotated[Path, typer.Option(help="Root of a checkout of the suite; nothing in it is changed.")],
    problems: Annotated[
        str | None, typer.Option(help="Only these: names or numbers, separated by commas; 3-7 for a range.")
    ] = None,
    budget_evaluations: Annotated[int | None, typer.Option(min=1, help="Evaluations per problem; default 24.")] = None,
    gpu_s: Annotated[float | None, typer.Option("--gpu-s", min=0.0, help="Device seconds per problem.")] = None,
    store: Annotated[
        Path | None, typer.Option(help="Folder of the run, gone on with if it exists; default: runs/bench/SUITE.")
    ] = None,
    limit_s: Annotated[
        float | None, typer.Option(min=0.0, help="Begin nothing after so many seconds; the same command goes on.")
    ] = None,
    only: Annotated[str | None, typer.Option(help="Only this step: prepare (needs no GPU), search or compare.")] = None,
    device: Annotated[str, typer.Option(help="gpu; cpu (interpreted, no speeds); auto: a GPU if there is one.")] = "auto",
    config: Annotated[
        Path | None, typer.Option(help="Configuration whose models, operators and settings are taken; not its tasks and budget.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all randomness.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the results, besides that of the run.")] = None,
    commit: Annotated[str | None, typer.Option(help="Named in the results, for copies without git history.")] = None,
) -> None:
    """Runs a public suite with a budget per problem, on all GPUs, goes on where it was, and writes the field's tables."""
    evaluations = budget_evaluations or (None if gpu_s is not None else 24)
    from evo.commands.bench_suite import SuiteOptions, bench_suite_command

    options = SuiteOptions(suite_root, problems, evaluations, gpu_s, store, limit_s, only, device, config, seed, out, commit)
    raise typer.Exit(bench_suite_command(suite, options))
