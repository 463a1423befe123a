"""What figures were measured with: the GPU, its driver, versions, the commit and the command, as every results file states them."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

TOOL_S = 30.0


def measured_with(commit: str | None, command: Sequence[str]) -> dict[str, Any]:
    """The facts that a results file names.

    Args:
        commit: Of this project, for copies without their git history; None asks git.
        command: What the user typed, program first.
    """
    return {
        "command": " ".join(command),
        "gpu": queried("name") or "none",
        "driver": queried("driver_version") or "none",
        "torch": importlib.metadata.version("torch"),
        "triton": importlib.metadata.version("triton"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit or _commit(),
    }


def queried(field: str) -> str:
    """One field of the first visible GPU from the driver's own tool (no CUDA context is made for it); empty without a GPU."""
    return "\n".join(driver_says(f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", first_gpu()))


def driver_says(*options: str, timeout_s: float = TOOL_S) -> list[str]:
    """Lines that nvidia-smi answers; none where it is not there, fails, or hangs, as it does on a host with a lost device."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        answer = subprocess.run([tool, *options], capture_output=True, text=True, timeout=timeout_s, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()] if answer.returncode == 0 else []


def first_gpu() -> str:
    """Index or id of the GPU that CUDA calls 0, as `nvidia-smi -i` takes it."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] or "0"


def described(session: Mapping[str, Any]) -> str:
    """The same in one paragraph of Markdown."""
    return (
        f"{session['gpu']}, driver {session['driver']}, torch {session['torch']}, triton {session['triton']}, "
        f"Python {session['python']}, {session['cores']} cores, commit {session['commit']}. `{session['command']}`"
    )


def write_results(folder: Path, name: str, results: Mapping[str, Any], page: str) -> None:
    """Writes NAME.json and NAME.md into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1), encoding="utf-8")
    (folder / f"{name}.md").write_text(page, encoding="utf-8")


def typed(program: str) -> list[str]:
    """The command line of this process as its user would type it again."""
    return [*program.split(), *sys.argv[1:]]


def _commit() -> str:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        answer = subprocess.run(git, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return answer.stdout.strip() or "unknown"
