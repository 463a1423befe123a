"""What scaling runs say, as a table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.commands.measured import described

NAME = "gpu_scaling"
WIDTH, HEIGHT, EDGE = 460, 340, 50


def page(results: Mapping[str, Any]) -> str:
    """Markdown."""
    lines = []
    if "runs" in results:
        lines += [*_measured(results), ""]
    if "simulated" in results:
        lines += [*_simulated(results["simulated"]), ""]
    return "\n".join([*lines, f"![Speedup against GPUs]({NAME}.svg)"]) + "\n"


def _measured(results: Mapping[str, Any]) -> list[str]:
    runs = results["runs"]
    good = ", ".join(f"{task} {fitness:.3f}" for task, fitness in results["wanted"].items())
    lines = [
        described(results["session"]),
        "",
        f"Tasks {', '.join(results['tasks'])}; {results['evaluations']} evaluations, seed {results['seed']}, no language model, "
        f"{results['cores_per_gpu']} cores for each GPU. Rates are taken between 15 and 85 % of the evaluations. *Device seconds* are "
        "those that evaluations used, over those that there were; *busy* is what the driver says. *Same fitness*: until every task "
        f"has {good}.",
    ]
    if results["evaluator"] != "kernels":
        lines += ["", f"**Evaluator {results['evaluator']}: no GPU was used, and these figures say nothing of any.**"]
    lines += [
        "",
        "| GPUs | evaluations per minute | speedup | device seconds | busy | engine, of a core | wall s | same fitness, s | recorded |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in runs:
        busy = "" if run["busy"] is None else f"{run['busy']:.0%}"
        until = "" if run["seconds_until_good"] is None else f"{run['seconds_until_good']:.0f}"
        lines.append(
            f"| {run['gpus']} | {run['per_minute']:.0f} | {_speedup(runs, run):.2f} | {run['measured_share']:.0%} | {busy} "
            f"| {run['engine_share']:.1%} | {run['wall_s']:.0f} | {until} | {_recorded(run)} |"
        )
    if (killed := results.get("killed")) is not None:
        death = killed["death"]
        replaced = "was not replaced" if death["replaced_s"] is None else f"was replaced after {death['replaced_s']:.1f} s"
        lines += [
            "",
            f"One evaluator of {killed['gpus']} killed after {death['at']:.0f} s, at {death['evaluations']} evaluations: it {replaced}; "
            f"{killed['per_minute']:.0f} evaluations per minute over the same window, {killed['wall_s']:.0f} s in all; "
            f"{_recorded(killed)}.",
        ]
    return lines


def _simulated(simulated: Mapping[str, Any]) -> list[str]:
    curve = simulated["curve"]
    return [
        f"Simulated devices ({simulated['record']}): {described(simulated['session'])}",
        "",
        "| simulated GPUs | evaluations per minute | speedup | engine, share of a core |",
        "|---|---|---|---|",
        *(f"| {p['gpus']} | {p['per_minute']:.0f} | {_speedup(curve, p):.2f} | {p['engine_share']:.1%} |" for p in curve),
    ]


def _recorded(run: Mapping[str, Any]) -> str:
    recorded = run["recorded"]
    return f"{recorded['evaluations']} verdicts, {recorded['twice']} twice, {max(0, recorded['lost'])} lost"


def _speedup(curve: Sequence[Mapping[str, Any]], point: Mapping[str, Any]) -> float:
    """Over the smallest count, as a multiple of its GPUs."""
    return float(point["per_minute"] / curve[0]["per_minute"] * curve[0]["gpus"])


def write_plot(folder: Path, results: Mapping[str, Any]) -> None:
    """Speedup against GPUs, measured and simulated, beside the ideal."""
    curves = {}
    if "runs" in results:
        curves["measured"] = ("#c44e52", results["runs"])
    if "simulated" in results:
        curves["simulated"] = ("#4878a8", results["simulated"]["curve"])
    most = max(point["gpus"] for _, curve in curves.values() for point in curve)
    scale_x, scale_y = (WIDTH - 2 * EDGE) / most, (HEIGHT - 2 * EDGE) / most

    def place(x: float, y: float) -> tuple[float, float]:
        return EDGE + x * scale_x, HEIGHT - EDGE - y * scale_y

    def line(points: Sequence[tuple[float, float]], style: str) -> str:
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        return f'<polyline points="{text}" fill="none" {style}/>'

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">GPUs</text>',
        f'<text x="{EDGE}" y="{EDGE - 28}">evaluations per minute, over those of one</text>',
        line([(0, most), (0, 0), (most, 0)], 'stroke="black"'),
        line([(0, 0), (most, most)], 'stroke="#999999" stroke-dasharray="4 4"'),
    ]
    counts = sorted({point["gpus"] for _, curve in curves.values() for point in curve})
    for count in counts:
        (x, bottom), (left, y) = place(count, 0), place(0, count)
        lines.append(f'<text x="{x:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{count}</text>')
        lines.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{count}</text>')
    for row, (name, (colour, curve)) in enumerate(curves.items()):
        points = [(point["gpus"], _speedup(curve, point)) for point in curve]
        lines.append(line(points, f'stroke="{colour}" stroke-width="2"'))
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in (place(*point) for point in points)]
        lines.append(f'<text x="{EDGE + 14}" y="{EDGE + 18 * row}" fill="{colour}">{name}</text>')
    lines.append(f'<text x="{EDGE + 14}" y="{EDGE + 18 * len(curves)}" fill="#777777">ideal</text>')
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.svg").write_text("\n".join([*lines, "</svg>"]) + "\n", encoding="utf-8")
