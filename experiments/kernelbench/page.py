"""Shows the comparison with KernelBench's evaluator as Markdown and as plain text."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MESSAGE_CHARACTERS = 260


def side_by_side_page(results: Mapping[str, Any], measured_with: str) -> str:
    """The table, the figures per problem, and why ours refuses what it refuses."""
    reasons = {row["theirs"]["not_run"] for row in results["rows"] if "not_run" in row["theirs"]}
    lines = [
        measured_with,
        "",
        *(f"Not run by theirs: {reason}." for reason in sorted(reasons)),
        *sentences(results),
        "",
        "| problem | candidate | theirs | ours | theirs, s | ours, s | ratio | theirs, µs | ours, µs | verdicts |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *("| " + " | ".join(cells(row)) + " |" for row in results["rows"]),
        "",
        "Seconds are wall time per candidate, both warm, ours one candidate at a time. µs: what each says the kernel takes (theirs: its",
        "mean of 100 calls with events; ours: device latency of replays, median).",
        "",
        "| problem | input elements | ours, once per problem, s | ours, share when busy, s | theirs, median, s | ratio to the share |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(problem_cells(number, item, results["rows"])) + " |" for number, item in results["problems"].items()),
        "",
        *stage_table(results["rows"]),
        "What ours says where it refuses:",
        "",
    ]
    for row in results["rows"]:
        ours = row["ours"]
        if ours and ours["status"] != "passed":
            first = " ".join(ours["message"].split())[:MESSAGE_CHARACTERS].replace("|", "\\|")
            lines.append(f"* {row['problem']}, {row['candidate']} ({row['why']}): `{ours['status']}` at {ours['stage']}. {first}")
    return "\n".join(lines) + "\n"


def side_by_side_text(results: Mapping[str, Any]) -> str:
    """A line per candidate, then the summary."""
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells(row), WIDTHS, strict=True)) for row in results["rows"]]
    return "\n".join([*lines, *sentences(results)])


WIDTHS = (4, 13, 8, 16, 7, 6, 6, 8, 8, 0)


def cells(row: Mapping[str, Any]) -> list[str]:
    """One candidate."""
    ours, theirs = row["ours"], row["theirs"]
    ran = "seconds" in theirs
    they_say = ("passed" if theirs["correct"] else "refused") if ran else "not run"
    ratio = f"{theirs['seconds'] / ours['seconds']:.0f}×" if ran and ours else "–"
    return [
        str(row["problem"]),
        row["candidate"],
        they_say,
        ours.get("status", "not run"),
        f"{theirs['seconds']:.1f}" if ran else "–",
        f"{ours['seconds']:.2f}" if ours else "–",
        ratio,
        _microseconds(theirs.get("runtime_us")),
        _microseconds(ours.get("latency_us")),
        row["verdict"],
    ]


def problem_cells(number: object, item: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """One problem: what ours makes once, and per candidate when busy."""
    seconds = [row["theirs"]["seconds"] for row in rows if str(row["problem"]) == str(number) and "seconds" in row["theirs"]]
    theirs, share = statistics.median(seconds) if seconds else None, item.get("our_share_s")
    return [
        item["title"],
        f"{item['elements']:.2e}",
        f"{item['our_setup_s']:.1f}" if "our_setup_s" in item else "–",
        f"{share:.2f}" if share else "–",
        f"{theirs:.1f}" if theirs else "–",
        f"{theirs / share:.0f}×" if theirs and share else "–",
    ]


def stage_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where the seconds of ours go, of what passed; stages overlap where the next configuration is prepared meanwhile."""
    passed = [row for row in rows if row["ours"].get("status") == "passed" and row["ours"].get("stages")]
    names = list(dict.fromkeys(name for row in passed for name in row["ours"]["stages"]))
    if not names:
        return []
    return [
        "Where ours spends its time on candidates that pass, alone on the machine, s:",
        "",
        "| problem | all | " + " | ".join(names) + " |",
        "|---" * (len(names) + 2) + "|",
        *(
            f"| {row['problem']} | {row['ours']['seconds']:.2f} | "
            + " | ".join(f"{row['ours']['stages'].get(name, 0.0):.2f}" for name in names)
            + " |"
            for row in passed
        ),
        "",
    ]


def sentences(results: Mapping[str, Any]) -> list[str]:
    """What it comes to."""
    found, setup = results["summary"], results["setup"]
    if not found["judged_by_both"]:
        return [f"{found['candidates']} candidates; none was judged by both."]
    ready = setup.get("theirs", {}).get("ready_s")
    busy = found.get("median_ratio_busy")
    kept = setup.get("theirs_kept")
    return [
        f"{found['judged_by_both']} of {found['candidates']} candidates were judged by both. Median wall time per candidate: theirs "
        f"{found['theirs_median_s']:.1f} s, ours {found['ours_median_s']:.2f} s; median ratio {found['median_ratio']:.0f}×, smallest "
        f"{found['smallest_ratio']:.1f}×.",
        *([f"With all threads of ours at work, as in a search: median ratio {busy:.0f}×."] if busy else []),
        *(
            [
                f"{kept['candidates']} answers of theirs are of an earlier session on such a GPU (commit {kept['measured']['commit']})."
            ]
            if kept
            else []
        ),
        f"Verdicts: {found['same']} the same, {found['ours_right']} where ours is right, {found['ours_wrong']} where ours is wrong.",
        "Set-up, not counted above: "
        + (f"theirs {ready:.1f} s, " if ready is not None else "")
        + f"ours {setup.get('ours_ready_s', 0.0):.1f} s to the first verdict.",
    ]


def _microseconds(value: float | None) -> str:
    return f"{value:.1f}" if value else "–"
