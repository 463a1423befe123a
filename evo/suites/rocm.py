"""The ROCm Triton benchmark, from a checkout of GEAK's evaluator: kernels with tests for pytest, compiled for AMD's gfx942.

There is no AMD GPU to measure on: kernels are compiled for the target, and checked by Triton's interpreter where it can run them; the
tables say so. `docs/suites.md` says what an AMD host needs.
"""

from __future__ import annotations

from pathlib import Path

from evo.suites.base import Problem
from evo.suites.families import family_of
from evo.suites.tritonbench import TritonBenchG
from evo.suites.tritonbench_files import suite_files


class RocmBench(TritonBenchG):
    """Its thirty-one files; those without autotuning."""

    name = "rocm"
    title = "ROCm Triton benchmark"
    target = "hip:gfx942"
    folder = "geak_eval/data/ROCm/data/ROCm_v1"
    perf = "geak_eval/data/ROCm/none"
    instructions = "geak_eval/data/ROCm/data/ROCm_v1.json"
    by_pytest = True

    def problems(self, root: Path) -> tuple[Problem, ...]:
        """See `evo.suites.base.Suite`."""
        found = []
        for path in suite_files(root / self.folder):
            family, gain = family_of(path.stem.removeprefix("test_"))
            found.append(Problem(f"rocm_{path.stem}", path.stem, f"{self.folder}/{path.name}", family, gain))
        return tuple(found)
