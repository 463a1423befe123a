"""How many published kernels the grammar takes, and how fast; the corpora are read where the environment says they lie."""

from __future__ import annotations

import ast
import os
import time
import warnings
from pathlib import Path

import pytest

from operators.grammar.check import module_violation

CORPORA = [
    ("TRITONBENCH_G", "the folder TritonBench_G_v1 of a checkout of thunlp/TritonBench", 0.98),
    ("LIGER", "an unpacked wheel of liger-kernel", 1.0),
    ("FLAGGEMS", "an unpacked wheel of flag_gems, or a checkout of FlagOpen/FlagGems", 0.96),
]
"""Environment variable, what it names, and the share of files with kernels that must match."""


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("variable", "what", "share"), CORPORA, ids=[row[0] for row in CORPORA])
def test_published_kernels_match(variable: str, what: str, share: float) -> None:
    root = os.environ.get(variable, "")
    if not root:
        pytest.skip(f"{variable} is not set: {what}")
    sources = {path: text for path in sorted(Path(root).rglob("*.py")) if (text := _kernels(path))}
    assert len(sources) >= 50, f"{variable}={root} has {len(sources)} files with kernels"
    begun = time.process_time()
    missed = {path.name: str(found) for path, text in sources.items() if (found := module_violation(text, strict=False))}
    seconds = time.process_time() - begun
    size = sum(len(text.encode()) for text in sources.values())
    strict = sum(module_violation(text) is None for text in sources.values())
    print(f"{variable}: {len(sources) - len(missed)}/{len(sources)}, strict {strict}, {seconds / size * 1e6:.1f} µs/byte", missed)
    assert 1 - len(missed) / len(sources) >= share
    assert seconds / size < 100e-6


def _kernels(path: Path) -> str:
    """The text of a file that Python reads and that has kernels, else nothing."""
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    return text if "triton.jit" in text else ""
