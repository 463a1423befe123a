"""Shows how far readings of one latency lie apart, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADS = (
    "kernel", "replay, µs", "equal kernel", "noise", "graph", "graph / replay", "CUPTI in graph", "with overheads / replay", "CUPTI, eager",
    "call, µs", "equal", "torch",
)  # fmt: skip


def with_overheads(cupti_us: float | None, calls: int, found: Mapping[str, float]) -> float | None:
    """What a graph should take per call, if kernels take what CUPTI says."""
    return None if cupti_us is None else cupti_us + (found["start_us"] + (calls - 1) * found["gap_us"]) / calls


def table(results: Mapping[str, Any]) -> list[str]:
    """Markdown rows, heading included."""
    lines = ["| " + " | ".join(HEADS) + " |", "|" + "---|" * len(HEADS)]
    for name, row in results["rows"].items():
        replay, cupti = row.get("replay_us"), row.get("cupti_graph_us")
        whole = with_overheads(cupti, row["calls"], results["overheads"]) if "calls" in row else None
        cells = [
            name,
            shown(replay),
            shown(row.get("replay_equal_us")),
            f"±{row['noise']:.2%}" if "noise" in row else row.get("problem", "–")[:60],
            shown(row.get("graph_us")),
            against(row.get("graph_us"), replay),
            shown(cupti),
            against(whole, replay),
            shown(row.get("cupti_eager_us")),
            *(shown(row.get(key)) for key in ("call_us", "call_equal_us", "call_torch_us")),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def agreement_page(results: Mapping[str, Any], measured_with: str) -> str:
    """Markdown."""
    found = results["overheads"]
    lines = [f"Seed {results['seed']}. {measured_with}", ""]
    if found is not None:
        lines += [
            f"An empty graph takes {found['empty_us']:.2f} µs, which replay and graph leave out; a graph of one kernel takes another "
            f"{found['start_us']:.2f} µs beyond the kernel, and each further kernel {found['gap_us']:.2f} µs beyond its own duration.",
            "",
        ]
    lines += [
        *table(results),
    ]
    return "\n".join(lines) + "\n"


def shown(value: float | None) -> str:
    """Microseconds, or a dash."""
    return "–" if value is None else f"{value:.2f}" if value < 100 else f"{value:.1f}"


def against(value: float | None, other: float | None) -> str:
    """How far one reading is from another, in percent."""
    return "–" if value is None or not other else f"{value / other - 1:+.2%}"
