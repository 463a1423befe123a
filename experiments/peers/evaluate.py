"""The trivial evaluator as OpenEvolve (a function) and ShinkaEvolve (a program) call theirs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import trivial


def evaluate(program_path: str) -> dict[str, float]:
    """The metrics of a candidate."""
    number = trivial.number_of(Path(program_path).read_text())
    if trivial.hangs():
        time.sleep(1e6)
    trivial.finished(number)
    return {"combined_score": trivial.score(number)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program_path")
    parser.add_argument("--results_dir")
    given = parser.parse_args()
    results = Path(given.results_dir)
    results.mkdir(parents=True, exist_ok=True)
    metrics = {**evaluate(given.program_path), "public": {}, "private": {}}
    (results / "metrics.json").write_text(json.dumps(metrics))
    (results / "correct.json").write_text(json.dumps({"correct": True, "error": None}))
