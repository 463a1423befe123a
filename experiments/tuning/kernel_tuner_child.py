"""Runs in an interpreter that has Kernel Tuner and needs nothing of this project: replays its strategies on cache files.

python kernel_tuner_child.py REQUEST ANSWER
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import warnings
from pathlib import Path


def main() -> None:
    """Reads the request, writes per cache file and strategy which distinct configurations were tried, in order."""
    import numpy

    tune_kernel = importlib.import_module("kernel_tuner").tune_kernel  # not a dependency of this project

    warnings.simplefilter("ignore")
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    answers = []
    for asked in request["asked"]:
        cache = json.loads(Path(asked["cache"]).read_text(encoding="utf-8"))
        names = cache["tune_params_keys"]
        for strategy in request["strategies"]:
            random.seed(asked["seed"])
            numpy.random.seed(asked["seed"])
            results, _ = tune_kernel(
                cache["kernel_name"], "void kernel() {}", 1, [], cache["tune_params"],
                strategy=strategy, strategy_options={"max_fevals": asked["trials"]},
                cache=asked["cache"], simulation_mode=True, quiet=True, lang="C", seed=asked["seed"],
            )  # fmt: skip
            tried = list(dict.fromkeys(",".join(str(result[name]) for name in names) for result in results if result))
            answers.append(
                {"grid": asked["grid"], "seed": asked["seed"], "strategy": strategy, "tried": tried[: asked["trials"]]}
            )
    Path(sys.argv[2]).write_text(json.dumps(answers), encoding="utf-8")


if __name__ == "__main__":
    main()
