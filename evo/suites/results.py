"""The results of a suite's run as files: all figures and raw rows as JSON, rows as CSV, and the field's tables as Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evo.suites.base import Suite
from evo.suites.figures import THRESHOLDS, figures
from evo.suites.jobs import write_whole
from evo.suites.peers import peers_of
from evo.suites.rows import Row

COLUMNS = (
    "name", "title", "family", "state", "reason", "oracle", "evaluations", "gpu_s", "called", "start_passed", "differs", "trust",
    "latency_kind", "own_speedup", "sampled", "correct",
)  # fmt: skip
SIDES = ("kernel", "eager", "compile", "max-autotune")
MODELLED = "without a GPU: kernels were checked by Triton's interpreter on small cases, and nothing was timed"


def results_of(
    suite: Suite, rows: Sequence[Row], session: Mapping[str, Any], device: str, passing: Mapping[str, float | None]
) -> dict[str, Any]:
    """All that a results file holds.

    Args:
        suite: Which.
        rows: Of all its problems that were to be run.
        session: What it was run with, see `evo.commands.measured`.
        device: ``gpu``, or ``cpu:TARGET``.
        passing: k → pass@k.
    """
    return {
        "suite": suite.name,
        "title": suite.title,
        "against": suite.against.value,
        "own_definition": suite.speedup,
        "device": device,
        "session": dict(session),
        "figures": figures(rows, suite.against, passing),
        "peers": [peer.to_json() for peer in peers_of(suite.name)],
        "rows": [row.to_json() for row in rows],
    }


def write_files(folder: Path, stem: str, results: Mapping[str, Any]) -> tuple[Path, Path, Path]:
    """Writes STEM.json, STEM.csv and STEM.md."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = tuple(folder / f"{stem}.{ending}" for ending in ("json", "csv", "md"))
    write_whole(paths[0], results)
    paths[1].write_text(csv_of(results), encoding="utf-8")
    paths[2].write_text(page(results), encoding="utf-8")
    return paths[0], paths[1], paths[2]


def csv_of(results: Mapping[str, Any]) -> str:
    """A line per problem; latencies per call in microseconds, sizes separated by blanks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    sides = [f"{side}_over_best{end}" for side in SIDES for end in ("", "_low", "_high")]
    writer.writerow(
        [*COLUMNS, "device_speedup", "device_low", "device_high", *sides, "best_call_us", *(f"{s}_call_us" for s in SIDES)]
    )
    for row in results["rows"]:
        ratios = [_number(value) for side in SIDES for value in row["call_speedup"].get(side, ("", "", ""))]
        calls = [" ".join(map(_number, row["call_us"].get(side, ()))) for side in ("best", *SIDES)]
        writer.writerow([*(_number(row[name]) for name in COLUMNS), *map(_number, row["device_speedup"]), *ratios, *calls])
    return text.getvalue()


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def page(results: Mapping[str, Any]) -> str:
    """Markdown: how it was run, the field's figures, peers, fast_p, what was refused, and a line per problem."""
    session = results["session"]
    lines = [
        f"# {results['title']}",
        "",
        f"{session['gpu']}, driver {session['driver']}, torch {session['torch']}, triton {session['triton']}, Python {session['python']}, "
        f"{session['cores']} cores, commit {session['commit']}. `{session['command']}`",
        "",
        *_qualified(results),
        *summary_table([results]),
        "",
        *_peers(results),
        *_fast(results),
        *_families(results),
        *_refusals(results),
        *_rows(results),
    ]
    return "\n".join(lines) + "\n"


def _qualified(results: Mapping[str, Any]) -> list[str]:
    if results["device"] == "gpu":
        return []
    return [f"Run {MODELLED}. Compiled for {results['device'].removeprefix('cpu:')}. No speed is claimed.", ""]


def summary_table(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """The head figures of suites, a line each; every share is over all problems, refused ones included."""
    lines = [
        "| suite | device | problems | call accuracy | execution accuracy | verified and unlike the start | faster on the device "
        "(≥ 1.02×) | device geometric mean, failures 1× | call geometric mean, failures 1× | own speedup | pass@k |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for results in several:
        found, timed = results["figures"], results["device"] == "gpu"
        states = found["states"]
        counts = f"{found['problems']} ({states['refused']} refused, {states['failed']} failed, {states['waiting']} not run)"
        calls = "; ".join(f"{side}: {_mean(item['geometric_mean'])}" for side, item in found["sides"].items() if item["measured"])
        cells = [
            results["title"], results["session"]["gpu"] if timed else f"none ({results['device'].removeprefix('cpu:')})", counts,
            _share(found["call_accuracy"]), _share(found["execution_accuracy"]), _share(found["differs"]),
            _share(found["faster_on_device"]) if timed else "–", _mean(found["device_geometric_mean"]) if timed else "–",
            calls or "–", _mean(found["own_speedup"]) if found["own_speedup"]["measured"] else "–", _passed(found["pass_at_k"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _share(item: Mapping[str, Any]) -> str:
    if not item["of"]:
        return "–"
    return f"{item['count'] / item['of']:.1%} ({item['count']}; {item['low']:.1%}–{item['high']:.1%})"


def _mean(item: Mapping[str, Any]) -> str:
    return f"{item['point']:.3f}× ({item['low']:.3f}–{item['high']:.3f}, {item['measured']} of {item['over']} measured)"


def _passed(passing: Mapping[str, float | None]) -> str:
    known = {k: value for k, value in passing.items() if value is not None}
    return ", ".join(f"@{k} {value:.1%}" for k, value in known.items()) or "not sampled"


def _peers(results: Mapping[str, Any]) -> list[str]:
    if not results["peers"]:
        return []
    lines = [
        "## Published by others",
        "",
        "On their hardware and by their definitions; not to be read as one table with ours.",
        "",
    ]
    return [*lines, *peer_table(results["peers"]), ""]


def peer_table(peers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of others."""
    lines = [
        "| system | suite | hardware | call accuracy | execution accuracy | speedup | to know | source |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for peer in peers:
        shares = [f"{peer[key]:.2f} %" if peer[key] is not None else "–" for key in ("call", "execution")]
        cells = [
            peer["system"],
            ", ".join(peer["suites"]),
            peer["hardware"],
            *shares,
            peer["speedup"] or "–",
            peer["note"],
            peer["source"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _fast(results: Mapping[str, Any]) -> list[str]:
    lines = [
        "## fast_p, call latency",
        "",
        "The share of all problems that are correct and more than p times as fast, wrapper and dispatch included.",
        "",
    ]
    lines += [
        f"| over | measured | {' | '.join(f'p = {p:g}' for p in THRESHOLDS)} | lower bound above 1.02 |",
        f"|---|---|{'---|' * len(THRESHOLDS)}---|",
    ]
    names = {"kernel": "the suite's kernel", "eager": "eager", "best": "the best of eager, torch.compile and max-autotune"}
    for side, item in results["figures"]["sides"].items():
        timed = item["measured"] > 0
        shares = [_share(item["fast_p"][f"{p:g}"]) if timed or p == 0 else "–" for p in THRESHOLDS]
        lines.append(
            f"| {names[side]} | {item['measured']} | {' | '.join(shares)} | {_share(item['faster']) if timed else '–'} |"
        )
    return [*lines, "", f"The suite's own speedup of a problem: {results['own_definition']}.", ""]


def _families(results: Mapping[str, Any]) -> list[str]:
    rows = results["rows"]
    lines = [
        "## By family",
        "",
        "| family | problems | verified | refused | best on the device | worst on the device |",
        "|---|---|---|---|---|---|",
    ]
    for family in sorted({row["family"] for row in rows}):
        own = [row for row in rows if row["family"] == family]
        timed = sorted((row for row in own if row["device_speedup"][0] > 0), key=lambda row: -row["device_speedup"][0])
        ends = [f"{row['title']} {row['device_speedup'][0]:.3f}×" for row in (timed[0], timed[-1])] if timed else ["–", "–"]
        counts = [sum(row["state"] == state for row in own) for state in ("verified", "refused")]
        lines.append(f"| {family} | {len(own)} | {counts[0]} | {counts[1]} | {' | '.join(ends)} |")
    return [*lines, ""]


def _refusals(results: Mapping[str, Any]) -> list[str]:
    unready = [row for row in results["rows"] if row["state"] != "verified"]
    if not unready:
        return []
    counted = Counter((row["state"], row["reason"].split(":")[0]) for row in unready)
    words = ", ".join(f"{count} {state} ({kind})" for (state, kind), count in counted.most_common())
    lines = [
        "## Not verified",
        "",
        f"{len(unready)} of {len(results['rows'])}: {words}.",
        "",
        "| problem | state | why |",
        "|---|---|---|",
    ]
    return [*lines, *(f"| {row['title']} | {row['state']} | {_cell(row['reason'])} |" for row in unready), ""]


def _rows(results: Mapping[str, Any]) -> list[str]:
    rows = [row for row in results["rows"] if row["state"] == "verified"]
    if not rows:
        return []
    lines = [
        "## Verified", "",
        "| problem | trust | judged by | evaluations | unlike the start | device speedup (≥) | calls over |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for row in rows:
        point, low, _ = row["device_speedup"]
        calls = ", ".join(f"{side} {ratio[0]:.3f}× (≥ {ratio[1]:.3f})" for side, ratio in row["call_speedup"].items())
        failed = ", ".join(f"{side} not: {_cell(why, 80)}" for side, why in row["unmeasured"].items())
        cells = [
            row["title"], row["trust"], row["oracle"], str(row["evaluations"]), "yes" if row["differs"] else "no",
            f"{point:.3f}× (≥ {low:.3f})" if point else "–", "; ".join(filter(None, (calls, failed))) or "–",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _cell(text: str, limit: int = 260) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def readme_section(several: Sequence[Mapping[str, Any]], commands: Mapping[str, str]) -> str:
    """What the README says of suites: our rows, then those of others, and the command of each.

    Args:
        several: Results of suites.
        commands: Suite → the command that made its results.
    """
    ours = [results for results in several if results["device"] == "gpu"]
    checked = [results for results in several if results["device"] != "gpu"]
    lines: list[str] = []
    if ours:
        lines += ["Measured:", "", *summary_table(ours), ""]
    if checked:
        lines += [f"Run {MODELLED}:", "", *summary_table(checked), ""]
    suites = {results["suite"] for results in several}
    peers = [
        peer
        for peer in {json.dumps(item): item for results in several for item in results["peers"]}.values()
        if suites & set(peer["suites"])
    ]
    if peers:
        lines += ["Published by others, on their hardware and by their definitions:", "", *peer_table(peers), ""]
    lines += [f"    {command}" for command in dict.fromkeys(commands.values())]
    return "\n".join(lines) + "\n"
