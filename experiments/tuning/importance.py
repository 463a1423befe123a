"""Which knobs matter on a measured grid, by Optuna's PED-ANOVA, as numbers and as a bar chart in SVG."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from html import escape
from pathlib import Path

import optuna

from experiments.tuning.grid import Grid

WIDTH, ROW, LEFT = 480, 26, 130


def importances(grid: Grid) -> dict[str, float]:
    """Share of each knob in what makes a configuration one of the fastest tenth (Watanabe et al., 2023), the largest first."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study()
    distributions = {name: optuna.distributions.CategoricalDistribution(choices) for name, choices in grid.space.items()}
    for entry in grid.valid:
        params = {name: entry.configuration[name] for name in grid.space}
        value = math.log(entry.latency_us or math.inf)
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    with warnings.catch_warnings():  # experimental in some versions
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(study, evaluator=optuna.importance.PedAnovaImportanceEvaluator())
    return {name: float(share) for name, share in found.items()}


def chart(title: str, shares: Mapping[str, float]) -> str:
    """A horizontal bar per knob."""
    height = ROW * (len(shares) + 2)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="8" y="{ROW - 8}" font-weight="bold">{escape(title)}</text>',
    ]
    scale = (WIDTH - LEFT - 60) / max([*shares.values(), 1e-9])
    for row, (name, share) in enumerate(shares.items(), 1):
        top = ROW * row + 6
        lines += [
            f'<text x="{LEFT - 8}" y="{top + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{top}" width="{max(1.0, share * scale):.1f}" height="{ROW - 9}" fill="#4878a8"/>',
            f'<text x="{LEFT + max(1.0, share * scale) + 6:.1f}" y="{top + 13}">{share:.2f}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def write_chart(grid: Grid, folder: Path) -> dict[str, float]:
    """Writes NAME.svg and returns the shares."""
    shares = importances(grid)
    folder.mkdir(parents=True, exist_ok=True)
    what = "measured" if grid.measured else "modelled"
    title = f"{grid.name}, {grid.case}: importance of knobs ({what}, PED-ANOVA)"
    (folder / f"{grid.name}.svg").write_text(chart(title, shares), encoding="utf-8")
    return shares
