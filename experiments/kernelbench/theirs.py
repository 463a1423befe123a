"""One warm process that evaluates answers with KernelBench's own `eval_kernel_against_ref`, from the checkout that a user names.

    python experiments/kernelbench/theirs.py ROOT

Reads requests (JSON, one a line: ``problem`` a path, ``source`` a module with `ModelNew`) from standard input and answers each with a
line on standard output; the first line says that it is ready. None of the suite's code is copied: its package is imported from
ROOT/src. The package imports libraries for asking language models and for progress bars, which an evaluation never calls; where
one of `UNUSED` is not installed, an empty stand-in takes its place, and the first line names it.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

UNUSED: Mapping[str, tuple[str, ...]] = {
    "dotenv": ("load_dotenv",),
    "tqdm": ("tqdm",),
    "openai": ("OpenAI",),
    "litellm": ("completion",),
    "requests": (),
}
"""Libraries that the package imports and the evaluation does not use, with the names that are imported from them."""

CORRECTNESS_TRIALS, TIMED_TRIALS = 5, 100


def main() -> None:
    """See the module's docstring."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the evaluation prints to standard output, which is for answers here
    started = time.monotonic()
    standing_in = stand_in()
    evaluate = load(Path(sys.argv[1]))
    warm_up()
    answers.write(json.dumps({"ready_s": time.monotonic() - started, "stand_ins": standing_in}) + "\n")
    for line in sys.stdin:
        answers.write(json.dumps(answer(evaluate, json.loads(line))) + "\n")


def stand_in() -> list[str]:
    """Puts empty modules where a library of `UNUSED` is not installed; names them."""
    absent = [name for name in UNUSED if importlib.util.find_spec(name) is None]
    for name in absent:
        module = ModuleType(name)
        for attribute in UNUSED[name]:
            setattr(module, attribute, _nothing)
        sys.modules[name] = module
    return absent


def load(root: Path) -> Callable[..., Any]:
    """The evaluation function of a checkout."""
    sys.path.insert(0, str(root.resolve() / "src"))
    function: Callable[..., Any] = importlib.import_module("kernelbench.eval").eval_kernel_against_ref
    return function


def warm_up() -> None:
    """Makes the CUDA context, which a warm evaluator has."""
    import torch

    if torch.cuda.is_available():
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()


def answer(evaluate: Callable[..., Any], request: Mapping[str, str]) -> dict[str, Any]:
    """One evaluation with the suite's defaults but for the numbers of trials and the backend; what it raises is part of the answer."""
    import torch

    original = Path(request["problem"]).read_text(encoding="utf-8")
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    started = time.monotonic()
    try:
        result = evaluate(
            original, request["source"], num_correct_trials=CORRECTNESS_TRIALS, num_perf_trials=TIMED_TRIALS,
            measure_performance=True, backend="triton", device=device,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001  the suite's own failure is a result of this comparison
        traceback.print_exc()
        return {"not_run": f"KernelBench's evaluator raised {type(error).__name__}: {error}"}
    seconds = time.monotonic() - started
    if result is None:
        return {"not_run": "KernelBench's evaluator gave no result"}
    return {
        "seconds": seconds,
        "compiled": bool(result.compiled),
        "correct": bool(result.correctness),
        "runtime_us": 1e3 * float(result.runtime) if result.runtime > 0 else None,
        "reference_us": 1e3 * float(result.ref_runtime) if result.ref_runtime > 0 else None,
        "notes": json.dumps({key: str(value)[:300] for key, value in result.metadata.items()}),
    }


def _nothing(*arguments: object, **keywords: object) -> None:
    """What a stand-in's names are; nobody calls them but `load_dotenv`, which then loads nothing."""


if __name__ == "__main__":
    main()
