"""The Markdown page and the printed table of the tuning benchmark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evo.commands.measured import described
from experiments.tuning.grid import Grid
from experiments.tuning.kernel_tuner_side import PREFIX as THEIR_PREFIX
from experiments.tuning.standing import overall
from experiments.tuning.strategies import QUICK, WITHIN

LARGE = 200
"""Valid configurations of a grid that counts."""


def grids_table(grids: Sequence[Grid]) -> list[str]:
    """What the truth is."""
    lines = [
        "| kernel, case | kind | valid of all | refused because | best µs | declared / best | within 2 % | one timing | A/A "
        "| compile core s | GPU s of the grid |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for grid in grids:
        reasons = ", ".join(f"{count} {status}" for status, count in grid.reasons.items() if status != "passed") or "–"
        if not grid.valid:
            lines.append(f"| {grid.name}, {grid.case} | {grid.kind} | 0 of {len(grid.entries)} | {reasons} | | | | | | | |")
            continue
        declared = grid.latencies.get(grid.default)
        spent = sum(entry.gate_s + entry.time_s for entry in grid.entries)
        cells = [
            f"{grid.name}, {grid.case}",
            grid.kind,
            f"{len(grid.valid)} of {len(grid.entries)}",
            reasons,
            f"{grid.best_us:.1f}" + ("" if grid.measured else " (modelled)"),
            f"{declared / grid.best_us:.2f}" if declared else "–",
            str(grid.near_best(WITHIN)),
            f"±{grid.noise:.2%}",
            f"±{grid.noise_floor:.2%}" if grid.noise_floor else "–",
            f"{grid.compile_s:.0f}",
            f"{spent:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def overall_table(rows: Sequence[Mapping[str, Any]], share: float) -> list[str]:
    """One line per strategy."""
    lines = [
        f"| strategy | kernels within 2 % (median seed) | runs within 2 % | quality at {QUICK} | quality at {share:.0%} | worst kernel "
        f"| GPU s of {QUICK} trials |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['strategy']} | {row['near']} of {row['grids']} | {row['runs_near']} of {row['runs']} | {row['quality_quick']:.3f} | "
            f"{row['quality_end']:.3f} | {row['worst_end']:.3f} | {row['quick_gpu_s']:.2f} |"
        )
    return lines


def kernels_table(rows: Sequence[Mapping[str, Any]], share: float) -> list[str]:
    """One line per kernel and strategy, medians with quartiles."""
    lines = [
        f"| kernel | strategy | trials until within 2 % | share of the grid | quality at {QUICK} | quality at {share:.0%} "
        f"| GPU s of {QUICK} | compile core s of {share:.0%} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        low, middle, high = (
            f"> {row['trials_allowed']}" if value is None else f"{value:.0f}" for value in row["trials_until_near"]
        )
        part = row["share_until_near"][1]
        lines.append(
            f"| {row['grid']} | {row['strategy']} | {middle} ({low} to {high}) | {f'> {share:.0%}' if part is None else f'{part:.1%}'} | "
            f"{spread(row['quality_quick'])} | {spread(row['quality_end'])} | {row['quick_gpu_s'][1]:.2f} | {row['compile_s']:.1f} |"
        )
    return lines


def spread(values: Sequence[float]) -> str:
    """Median and quartiles."""
    return f"{values[1]:.3f} ({values[0]:.3f} to {values[2]:.3f})"


def autotune_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Triton's own autotuner beside."""
    lines = [
        "| kernel | configurations | wall s | whole space, wall s | quality of its choice | ours at 15 %: compile core s + GPU s |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row["error"]:
            lines.append(f"| {row['name']} | {row['configurations']} of {row['of']} | {row['error']} | | | |")
            continue
        whole = f"{row['extrapolated_s']:.0f}" + ("" if row["whole"] else " (extrapolated linearly)")
        quality = f"{row['quality']:.3f}" if row["quality"] else "–"
        ours = f"{row['ours_s']:.1f}" if row.get("ours_s") else "–"
        lines.append(
            f"| {row['name']} | {row['configurations']} of {row['of']} | {row['wall_s']:.1f} | {whole} | {quality} | {ours} |"
        )
    return lines


def guesses_table(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How much of a grid the guess knows."""
    lines = [
        f"| kernel | rank correlation of guess and latency (Spearman) | best quality among its first {QUICK} | infeasible, foreseen | "
        "feasible, taken for infeasible |",
        "|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        foreseen = "–" if row["foreseen"] is None else f"{row['foreseen']:.0%}"
        lines.append(f"| {name} | {row['spearman']:.2f} | {row['first_quality']:.3f} | {foreseen} | {row['mistaken']:.1%} |")
    return lines


def page(results: Mapping[str, Any], grids: Sequence[Grid]) -> str:
    """The whole page."""
    share = results["share"]
    parts = [
        [described(results["session"])],
        verdict(results, grids),
        [explanation(results, grids)],
        overall_table(results["overall"], share),
    ]
    if results["autotune"]:
        parts.append(autotune_table(results["autotune"]))
    if results["guesses"]:
        parts.append(guesses_table(results["guesses"]))
    parts += [grids_table(grids), kernels_table(results["standings"], share), list(importance_lines(results["importances"]))]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def verdict(results: Mapping[str, Any], grids: Sequence[Grid]) -> list[str]:
    """The findings in words: ours beside each of the others, on grids large enough to count."""
    large = {grid.name for grid in grids if len(grid.valid) >= LARGE}
    rows = [row for row in results["standings"] if row["grid"] in large]
    by_name = {row["strategy"]: row for row in overall(rows)}
    if "ours" not in by_name:
        return [f"No grid has {LARGE} valid configurations."]
    mine, share = by_name["ours"], f"{results['share']:.0%}"
    kind = "measured" if all(grid.measured for grid in grids) else "modelled, not measured"
    lines = [
        f"* **Ours is within 2 % of the best of the grid on {mine['near']} of {mine['grids']} kernels** with trials for at most {share} of "
        f"the valid configurations (median over {len(results['seeds'])} seeds; grids {kind}, those of at least {LARGE} valid "
        f"configurations count). Quality after {QUICK} trials {mine['quality_quick']:.3f}, in the end {mine['quality_end']:.3f}, on the "
        f"worst kernel {mine['worst_end']:.3f}."
    ]
    theirs = [row for name, row in by_name.items() if name.startswith(THEIR_PREFIX)]
    best = max(theirs, key=lambda row: (row["near"], row["quality_end"]), default=None)
    others = {
        "the same without its guess": by_name.get("ours, without a guess"),
        "random search": by_name.get("random"),
        "Optuna's TPE with its defaults": by_name.get("TPE, defaults"),
        f"Kernel Tuner's best of {len(theirs)} strategies, chosen afterwards ({best['strategy'] if best else ''})": best,
    }
    for name, row in others.items():
        if row is not None:
            lines.append(
                f"* {name}: {row['near']} of {row['grids']} kernels; quality after {QUICK} trials {row['quality_quick']:.3f}, in the end "
                f"{row['quality_end']:.3f}, on the worst kernel {row['worst_end']:.3f}."
            )
    lines.append(
        f"* GPU time of a quick tune ({QUICK} timings and one gate): {mine['quick_gpu_s']:.2f} s in the median over kernels, "
        f"{max(row['quick_gpu_s'][1] for row in rows if row['strategy'] == 'ours'):.2f} s for the slowest."
    )
    whole = [row for row in results["autotune"] if not row["error"] and row.get("ours_s")]
    if whole:
        ratios = sorted(row["extrapolated_s"] / row["ours_s"] for row in whole)
        lines.append(
            f"* `triton.autotune` on the same spaces takes {statistics.median(ratios):.1f} times as long as ours, which compiles one "
            f"configuration after the other too, in the median of {len(whole)} kernels ({ratios[0]:.1f} to {ratios[-1]:.1f}); what is "
            "extrapolated is marked below."
        )
    return lines


def explanation(results: Mapping[str, Any], grids: Sequence[Grid]) -> str:
    """How the figures came about."""
    devices = ", ".join(sorted({grid.device for grid in grids}))
    guessed = sorted(results["guesses"])
    noises = ", ".join(f"{name} {value:.2%}" for name, value in results["noise"].items())
    return (
        f"Grids of {devices}, measured with: {described(grids[0].session) if grids[0].session else 'unknown'} "
        f"Seeds {results['seeds']}. Ours begins with a guess from a dozen traces on a CPU (kernels: {', '.join(guessed) or 'none'}), which "
        "knows data-sheet figures and nothing of these grids; its first trial is the declared configuration, which the others are not "
        "given. A trial is a distinct configuration that was tried, infeasible ones "
        "included; a strategy has "
        f"{results['share']:.0%} of the number of valid configurations. It sees latencies with noise (one draw per configuration and "
        f"seed, standard deviation: {noises}), chooses the fastest it saw and is judged by the truth: quality is the grid's best latency "
        "over that of the choice. Within 2 % counts from the trial after which it stays so. Kernel Tuner: its simulation mode on the "
        f"same noisy grids{'' if results['kernel_tuner'] else ' (left out: no interpreter with it was given)'}."
    )


def importance_lines(importances: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """One line per kernel; charts lie beside the page."""
    yield "Importance of knobs (PED-ANOVA over the whole grid, for being among the fastest tenth):"
    yield ""
    for name, shares in importances.items():
        texts = ", ".join(f"{knob} {share:.2f}" for knob, share in shares.items())
        yield f"* {name}: {texts}"
    yield ""
    yield from (f"![Importance of the knobs of {name}](importance/{name}.svg)" for name in importances)


def printed(results: Mapping[str, Any], grids: Sequence[Grid]) -> str:
    """What the terminal shows last."""
    lines = [*verdict(results, grids), "", *overall_table(results["overall"], results["share"])]
    if results["autotune"]:
        lines += ["", *autotune_table(results["autotune"])]
    return "\n".join(lines)
