"""Counts which files of TritonBench-G each rewrite applies to, and proves the children.

    TRITON_EVOLVE_TRITONBENCH=FOLDER python experiments/rewrite_applicability.py --out experiments/results --kept FILE
        [--workers N] [--deadline-s S] [--most N] [--limit-s S] [--no-compile]

The folder is TritonBench_G_v1 of a checkout. Up to ``--most`` children per rewrite and file run under Triton's interpreter beside
their parents, on the file's own test, and go through the real compiler for cuda:90 (the rewrites for Blackwell are not compiled). A child
is proved where every result is the same bit by bit, or, for rewrites that change rounding, within `ROUNDINGS` roundings. Files whose test
takes more than ``--deadline-s`` processor seconds under the interpreter, or does not run on this Triton at all, prove nothing.

Each file's outcome is a line of ``--kept`` as soon as it is known; files that are in it already are not looked at again, so a run that
was stopped, or whose ``--limit-s`` wall seconds were over, goes on. Writes rewrites_applicability.json and .md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.commands.measured import described, measured_with, typed, write_results
from evo.registry import find_operators
from experiments.rewrites.corpus import TRITONBENCH, Specimen, liger_specimens, tritonbench_specimens
from experiments.rewrites.proving import Job, Prover, bound
from operators.rewrite.base import Rewrite

NAME = "rewrites_applicability"
TURNED = {"PROGRAMS": 2, "GROUP": 2, "UNROLL": 2, "ROWS": 2, "SPLIT": 2, "TILES": 2}
"""Knobs of the children's own, so that small cases take several of each."""
BLACKWELL = frozenset({"specialise_warps"})
"""Rewrites for cuda:100, whose children are not compiled here."""
COMPILE_S = 60.0


def outcome(specimen: Specimen, provers: Mapping[str, Prover], most: int, deadline_s: float) -> dict[str, Any]:
    """What became of one file: rewrite → its children's verdicts."""
    made = provers["offer"].answer({"source": specimen.source, "most": most})
    children = [(name, source) for name, sources in made.items() for source in sources]
    answer: dict[str, Any] = {"file": specimen.name, "ran": False, "rewrites": {name: [] for name in made}}
    if not children:
        return answer
    job = Job(specimen.source, tuple(source for _, source in children), specimen.driver, TURNED, deadline_s)
    run = provers["interpret"].answer(job.encoded()) if specimen.driver else {"failure": "no driver"}
    answer["ran"], answer["why"] = "children" in run, run.get("failure", "")
    verdicts = run.get("children") or [{"failure": "original"}] * len(children)
    binaries: list[dict[str, Any]] = [{}] * len(children)
    if "compile" in provers and answer["ran"]:
        here = [place for place, (name, _) in enumerate(children) if name not in BLACKWELL]
        job = Job(specimen.source, tuple(children[place][1] for place in here), specimen.driver, TURNED, COMPILE_S)
        for place, binary in zip(here, provers["compile"].answer(job.encoded())["children"], strict=True):
            binaries[place] = binary
    for (name, _), verdict, binary in zip(children, verdicts, binaries, strict=True):
        answer["rewrites"][name].append({"verdict": judged(name, verdict, specimen.source), "run": verdict, "compiled": binary})
    return answer


def judged(name: str, verdict: Mapping[str, Any], source: str) -> str:
    """``proved``, ``wrong`` or ``not run``."""
    if "failure" in verdict:
        slow = verdict["failure"] == "original" or "took more" in verdict["failure"]
        return "not run" if slow else "wrong"
    cls = find_operators()[name]
    assert issubclass(cls, Rewrite)
    return "proved" if verdict["error"] <= bound(source, exact=cls.exact) else "wrong"


def looked_at(specimens: Sequence[Specimen], given: argparse.Namespace) -> list[dict[str, Any]]:
    """The outcomes of all files, from ``--kept`` where it has them."""
    known = [json.loads(line) for line in given.kept.read_text().splitlines()] if given.kept.exists() else []
    missing = [item for item in specimens if item.name not in {row["file"] for row in known}]
    if given.limit_s <= 0:
        return known
    end, lock = time.monotonic() + given.limit_s, Lock()
    kinds = ["offer", "interpret", *([] if given.no_compile else ["compile"])]

    def work(share: Sequence[Specimen]) -> None:
        provers = {kind: Prover(kind) for kind in kinds}
        try:
            for specimen in share:
                if time.monotonic() > end:
                    return
                found = outcome(specimen, provers, given.most, given.deadline_s)
                with lock, given.kept.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                    known.append(found)
        finally:
            for prover in provers.values():
                prover.close()

    with ThreadPoolExecutor(given.workers) as pool:
        list(pool.map(work, [missing[start :: given.workers] for start in range(given.workers)]))
    return known


def row(name: str, outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A rewrite's counts over all files."""
    of = [item["rewrites"].get(name, []) for item in outcomes]
    verdicts = [child["verdict"] for children in of for child in children]
    binaries = [child["compiled"] for children in of for child in children if child["compiled"]]
    built = sum(item.get("kernels", 0) > 0 for item in binaries)
    return {
        "rewrite": name,
        "files": sum(bool(children) for children in of),
        "proved": sum(any(child["verdict"] == "proved" for child in children) for children in of),
        "children": len(verdicts),
        "children_proved": verdicts.count("proved"),
        "children_wrong": verdicts.count("wrong"),
        "children_not_run": verdicts.count("not run"),
        "children_compiled": built,
        "children_not_compiled": len(binaries) - built,
    }


def failures(outcomes: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What was wrong or did not compile."""
    found = []
    for item in outcomes:
        for name, children in item["rewrites"].items():
            for child in children:
                if child["verdict"] == "wrong":
                    found.append({"file": item["file"], "rewrite": name, "what": str(child["run"])[:400]})
                if child["compiled"] and not child["compiled"].get("kernels"):
                    found.append({"file": item["file"], "rewrite": name, "what": "compiler: " + str(child["compiled"])[:400]})
    return found


def page(
    session: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], wrong: Sequence[Mapping[str, str]], totals: Mapping[str, int]
) -> str:
    """The Markdown page."""
    columns = list(rows[0])
    lines = [described(session), "", f"{totals['looked_at']} of {totals['files']} files of TritonBench-G were looked at; "
             f"the tests of {totals['ran']} run under the interpreter in time.", ""]  # fmt: skip
    lines += ["| " + " | ".join(column.replace("_", " ") for column in columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(item[column]) for column in columns) + " |" for item in rows]
    if wrong:
        lines += ["", "What failed:", "", "| file | rewrite | what |", "|---|---|---|"]
        lines += [
            f"| {item['file']} | {item['rewrite']} | {' '.join(item['what'].split())[:160].replace('|', '/')} |" for item in wrong
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kept", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--deadline-s", type=float, default=10.0)
    parser.add_argument("--most", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    parser.add_argument("--no-compile", action="store_true")
    given = parser.parse_args()
    specimens = tritonbench_specimens()
    if not specimens:
        raise SystemExit(f"{TRITONBENCH} names no folder TritonBench_G_v1")
    outcomes = looked_at([*specimens, *liger_specimens()], given)
    bench = [item for item in outcomes if item["file"].startswith("tritonbench/")]
    tried = {name for item in outcomes for name in item["rewrites"]}  # rewrites that came later have no row
    names = [name for name, cls in find_operators().items() if issubclass(cls, Rewrite) and name in tried]
    liger = [item for item in outcomes if item["file"].startswith("liger/")]
    rows = [row(name, bench) | {"files_of_liger": sum(bool(item["rewrites"].get(name)) for item in liger)} for name in names]
    totals = {"files": len(specimens), "looked_at": len(bench), "ran": sum(item["ran"] for item in bench), "liger": len(liger)}
    session = measured_with(None, typed("python experiments/rewrite_applicability.py"))
    wrong = failures(outcomes)
    data = {"session": session, "totals": totals, "rows": rows, "failures": wrong}
    write_results(given.out, NAME, data, page(session, rows, wrong, totals))


if __name__ == "__main__":
    main()
