"""The environment that all tests share: what Triton and Ray read when they are imported."""

from __future__ import annotations

import os

from hypothesis import settings

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # unset, Triton warns, and here a warning is an error
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several test processes share few cores
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # at 15, as Ray has it, one busy process per core starves its workers
os.environ.pop("ANTHROPIC_API_KEY", None)  # no test may spend money

# A machine with other work to do is no failure. The same examples each time: a check of one change must not fail by what it did not
# change; whoever looks for more asks for others.
settings.register_profile("checked", deadline=None, derandomize=True)
settings.register_profile("exploring", deadline=None)
settings.load_profile("exploring" if os.environ.get("TRITON_EVOLVE_EXPLORE") else "checked")
