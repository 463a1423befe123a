"""Counts which kernels of other projects each rewrite applies to, and proves the children.

    TRITON_EVOLVE_TRITONBENCH=FOLDER TRITON_EVOLVE_LIGER=FOLDER TRITON_EVOLVE_FLAG_GEMS=FOLDER TRITON_EVOLVE_PROJECTS=FOLDER
        python experiments/rewrite_applicability.py --out experiments/results --kept FILE
        [--enough N] [--workers N] [--deadline-s S] [--most N] [--limit-s S] [--compile]

The folders are TritonBench_G_v1 of a checkout, unpacked wheels, and one with further projects side by side, see
`experiments/rewrites/other_projects.py`; some may be missing. A file's own test, or small inputs for modules of the others, run under
Triton's interpreter, which also tells which kernels they reach. Up to ``--most`` children per rewrite and file, of what is reached, run
beside their parents and, with ``--compile``, go through the real compiler for cuda:90 (the rewrites for Blackwell do not). A child is
proved where every result is the same bit by bit, or, for rewrites that change rounding, within `ROUNDINGS` roundings.

Where a rewrite finds nothing in a module as it stands, it is tried on the same module after a move that prepares it, see
`experiments/rewrites/offer_child.py`: mostly `expose_knobs`, a search's first move on a foreign kernel. Such proofs are counted apart.
Files that take more than ``--deadline-s`` processor seconds under the interpreter, or do not run on this Triton at all, prove nothing. A
rewrite that is proved on ``--enough`` files is proved on no more; files are taken in a random order, so that those are a fair sample.

What becomes of a file is a line of ``--kept`` as soon as it is known, and is not looked at again, so a run that was stopped, or whose
``--limit-s`` wall seconds were over, goes on; files in it are looked at again for rewrites that are new. Writes
rewrites_applicability.json and .md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, it has its own folder on the path, not the checkout

from evo.commands.measured import described, measured_with, typed, write_results
from evo.registry import find_operators
from experiments.rewrites.corpus import Specimen, foreign_specimens
from experiments.rewrites.other_projects import PROJECTS_KNOWN
from experiments.rewrites.proving import Job, Prover, bound
from experiments.rewrites.reaching import reaches
from operators.rewrite.base import Rewrite

NAME = "rewrites_applicability"
PROJECTS = {"tritonbench": "TritonBench-G", "liger": "Liger", "flag_gems": "FlagGems", "others": "others"}
TURNED = {"PROGRAMS": 2, "GROUP": 2, "UNROLL": 2, "ROWS": 2, "SPLIT": 2, "TILES": 2}
"""Knobs of the children's own, so that small cases take several of each."""
BLACKWELL = frozenset({"specialise_warps"})
"""Rewrites for cuda:100, whose children are not compiled here."""
COMPILE_S = 60.0
FIVE = 5
"""Kernels not written for it on which each rewrite shall be proved."""


def outcome(
    specimen: Specimen, names: Sequence[str], provers: Mapping[str, Prover], done: frozenset[str], given: argparse.Namespace
) -> dict[str, Any]:
    """What became of one file: which rewrites apply, and their children's verdicts; nothing is proved of rewrites in `done`."""
    parent = Job(specimen.source, (), specimen.driver, TURNED, given.deadline_s)
    run = provers["interpret"].answer(parent.encoded())
    asked = {"source": specimen.source, "rewrites": list(names), "most": given.most, "reached": run.get("reached")}
    found = provers["offer"].answer(asked)
    answer: dict[str, Any] = {
        "file": specimen.name,
        "why": run.get("failure", ""),
        "looked_at": list(names),
        "applies": [name for name, made in found["made"].items() if made["applies"]],
        "children": {},
    }
    for move, source in found["parents"].items():
        children = [
            (name, child)
            for name, made in found["made"].items()
            if made["after"] == move and name not in done and not run.get("failure")
            for child in made["children"]
        ]
        verdicts = _verdicts(specimen, source, children, provers, given.deadline_s) if children else []
        for (name, _), verdict in zip(children, verdicts, strict=True):
            answer["children"].setdefault(name, []).append(verdict | {"after": move})
    return answer


def _verdicts(
    specimen: Specimen, source: str, children: Sequence[tuple[str, str]], provers: Mapping[str, Prover], deadline_s: float
) -> list[dict[str, Any]]:
    job = Job(source, tuple(child for _, child in children), specimen.driver, TURNED, deadline_s)
    run = provers["interpret"].answer(job.encoded())
    runs = run.get("children") or [{"failure": "original", "why": run["failure"]}] * len(children)
    verdicts = [
        {"verdict": judged(name, each, source), "run": each, "compiled": {}}
        for (name, _), each in zip(children, runs, strict=True)
    ]
    for (_, child), found in zip(children, verdicts, strict=True):
        if "reached" in run and not reaches(source, child, run["reached"]):
            found["verdict"] = "not run"
    if "compile" in provers:
        here = [place for place, (name, _) in enumerate(children) if name not in BLACKWELL]
        job = Job(source, tuple(children[place][1] for place in here), specimen.driver, TURNED, COMPILE_S)
        for place, binary in zip(here, provers["compile"].answer(job.encoded())["children"], strict=True):
            verdicts[place]["compiled"] = binary
    return verdicts


def judged(name: str, verdict: Mapping[str, Any], source: str) -> str:
    """``proved``, ``wrong`` or ``not run``."""
    if "failure" in verdict:
        slow = verdict["failure"] == "original" or "took more" in verdict["failure"]
        return "not run" if slow else "wrong"
    cls = find_operators()[name]
    assert issubclass(cls, Rewrite)
    return "proved" if verdict["error"] <= bound(source, exact=cls.exact) else "wrong"


def looked_at(specimens: Sequence[Specimen], names: Sequence[str], given: argparse.Namespace) -> list[dict[str, Any]]:
    """The outcomes of all files, from ``--kept`` where it has them."""
    known = [json.loads(line) for line in given.kept.read_text().splitlines()] if given.kept.exists() else []
    seen: dict[str, set[str]] = {}
    for item in known:
        seen.setdefault(item["file"], set()).update(item["looked_at"])
    missing = [(item, [name for name in names if name not in seen.get(item.name, ())]) for item in specimens]
    missing = [(item, wanted) for item, wanted in missing if wanted] if given.limit_s > 0 else []
    end, lock = time.monotonic() + given.limit_s, Lock()
    kinds = ["offer", "interpret", *(["compile"] if given.compile else [])]

    def enough() -> frozenset[str]:
        counts = Counter(name for item in known for name in proved(item))
        return frozenset(name for name, count in counts.items() if count >= given.enough)

    def work(share: Sequence[tuple[Specimen, list[str]]]) -> None:
        provers = {kind: Prover(kind) for kind in kinds} if share else {}
        try:
            for specimen, wanted in share:
                if time.monotonic() > end:
                    return
                with lock:
                    done = enough()
                found = outcome(specimen, wanted, provers, done, given)
                with lock, given.kept.open("a") as file:
                    file.write(json.dumps(found) + "\n")
                    known.append(found)
        finally:
            for prover in provers.values():
                prover.close()

    with ThreadPoolExecutor(given.workers) as pool:
        list(pool.map(work, [missing[start :: given.workers] for start in range(given.workers)]))
    return known


def proved(item: Mapping[str, Any], *, prepared: bool = True) -> list[str]:
    """The rewrites that a file proves; without `prepared`, as it stands."""
    return [
        name
        for name, children in item["children"].items()
        if any(child["verdict"] == "proved" and (prepared or not child["after"]) for child in children)
    ]


def project_of(file: str) -> str:
    """The key in `PROJECTS` of a file."""
    name = file.partition("/")[0]
    return name if name in PROJECTS else "others"


def row(name: str, outcomes: Sequence[Mapping[str, Any]], enough: int) -> dict[str, Any]:
    """A rewrite's counts over all files."""
    children = [child for item in outcomes for child in item["children"].get(name, [])]
    verdicts = Counter(child["verdict"] for child in children)
    binaries = [child["compiled"] for child in children if child["compiled"]]
    applies = [project_of(item["file"]) for item in outcomes if name in item["applies"]]
    on = sorted(item["file"] for item in outcomes if name in proved(item))
    return {
        "rewrite": name,
        "files": len(applies),
        **{f"of_{project}": applies.count(project) for project in PROJECTS},
        "proved": len(on),
        "proved_as_it_stands": sum(name in proved(item, prepared=False) for item in outcomes),
        "after": sorted({child["after"] for child in children if child["after"] and child["verdict"] == "proved"}),
        "stopped": len(on) >= enough,
        "children_wrong": verdicts["wrong"],
        "children_not_run": verdicts["not run"],
        "children_compiled": sum(binary.get("kernels", 0) > 0 for binary in binaries),
        "children_not_compiled": sum(not binary.get("kernels") for binary in binaries),
        "proved_on": on,
    }


def partial(outcomes: Sequence[Mapping[str, Any]], names: Sequence[str]) -> int:
    """How many files were not looked at for all rewrites."""
    seen: dict[str, set[str]] = {}
    for item in outcomes:
        seen.setdefault(item["file"], set()).update(item["looked_at"])
    return sum(not set(names) <= found for found in seen.values())


def origins(files: Iterable[str]) -> list[str]:
    """Where the files of other projects than those with a column of their own are from."""
    names = {file.partition("/")[0] for file in files}
    return [project.origin for name, project in PROJECTS_KNOWN.items() if name in names]


def failures(outcomes: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """What was wrong or did not compile."""
    found = []
    for item in outcomes:
        for name, children in item["children"].items():
            for child in children:
                if child["verdict"] == "wrong":
                    found.append({"file": item["file"], "rewrite": name, "what": str(child["run"])[:400]})
                if child["compiled"] and not child["compiled"].get("kernels"):
                    found.append({"file": item["file"], "rewrite": name, "what": "compiler: " + str(child["compiled"])[:400]})
    return found


def page(
    session: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], wrong: Sequence[Mapping[str, str]], totals: Mapping[str, Any]
) -> str:
    """The Markdown page."""
    said = "; ".join(
        f"{PROJECTS[name]}: {count['files']} files, {count['ran']} run in time" for name, count in totals["of"].items()
    )
    few = [f"{item['rewrite']} ({item['proved']})" for item in rows if item["proved"] < FIVE]
    lines = [
        described(session),
        "",
        f"Files of other projects, whose tests or calls run under Triton's interpreter: {said}.",
        *([f"The others are {'; '.join(totals['origins'])}."] if totals["origins"] else []),
        f"{len(rows) - len(few)} of {len(rows)} rewrites are proved on {FIVE} of them or more"
        + (f"; not {', '.join(few)}." if few else "."),
        "",
        f"“≥” marks rewrites that were proved on {totals['enough']} files and then left alone. Of the files on which a rewrite is proved, "
        "some had it applied after a move that prepares it, because nothing applied before."
        + (
            f" {totals['partial']} files did not run for all rewrites: counts without “≥” may be too low."
            if totals["partial"]
            else ""
        ),
        "",
        f"| rewrite | applies to files | {' | '.join(PROJECTS.values())} | proved on files | of these as they stand | else after | wrong "
        "| not run in time |",
        "|" + "---|" * (7 + len(PROJECTS)),
    ]
    for item in rows:
        counts = [item["files"], *(item[f"of_{project}"] for project in PROJECTS)]
        shown = f"{'≥ ' if item['stopped'] else ''}{item['proved']}"
        counts += [shown, item["proved_as_it_stands"], ", ".join(item["after"]), item["children_wrong"], item["children_not_run"]]
        lines.append(f"| {item['rewrite']} | " + " | ".join(map(str, counts)) + " |")
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
    parser.add_argument("--enough", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--deadline-s", type=float, default=10.0)
    parser.add_argument("--most", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    parser.add_argument("--compile", action="store_true")
    given = parser.parse_args()
    specimens = foreign_specimens()
    if not specimens:
        raise SystemExit("no folder is named, see --help")
    names = [name for name, cls in find_operators().items() if issubclass(cls, Rewrite)]
    outcomes = looked_at(specimens, names, given)
    rows = [row(name, outcomes, given.enough) for name in names]
    why = {item["file"]: item["why"] for item in outcomes}
    totals: dict[str, Any] = {
        "looked_at": len(why),
        "enough": given.enough,
        "of": {},
        "origins": origins(why),
        "partial": partial(outcomes, names),
    }
    for project in PROJECTS:
        of = [reason for file, reason in why.items() if project_of(file) == project]
        if of:
            totals["of"][project] = {"files": len(of), "ran": sum(not reason for reason in of)}
    session = measured_with(None, typed("python experiments/rewrite_applicability.py"))
    wrong = failures(outcomes)
    data = {"session": session, "totals": totals, "rows": rows, "failures": wrong}
    write_results(given.out, NAME, data, page(session, rows, wrong, totals))


if __name__ == "__main__":
    main()
