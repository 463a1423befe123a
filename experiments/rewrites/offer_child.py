"""What the offering child runs: every rewrite on sources, one JSON line {"source", "most"} in, {rewrite: [child …]} out."""

from __future__ import annotations

import json
import sys

from evo.registry import find_operators
from operators.rewrite.base import Rewrite
from operators.rewriting import offers

TARGETS = {"specialise_warps": "cuda:100"}


def main() -> None:
    """Answers sources as they come."""
    rewrites = {name: cls() for name, cls in find_operators().items() if issubclass(cls, Rewrite)}
    for line in sys.stdin:
        job = json.loads(line)
        made = {
            name: [item.source for item in offers(rewrite, job["source"], TARGETS.get(name, "cuda:90"), job["most"]).children]
            for name, rewrite in rewrites.items()
        }
        sys.stdout.write(json.dumps(made) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
