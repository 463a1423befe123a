"""What `ray submit configs/evolve.yaml experiments/evolve.py` runs on the head: the search of that file, from its store if there is one."""

from __future__ import annotations

import sys
from pathlib import Path

from evo.commands.search import RUNS, Overrides, resume_command, run_command
from evo.config import read_config
from evo.errors import TritonEvolveError

BOOTSTRAP = Path("~/ray_bootstrap_config.yaml").expanduser()
"""Where the launcher puts the cluster file on the head."""


def main() -> int:
    """Runs or resumes; the address is that of the Ray on this host."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else BOOTSTRAP
    config = read_config(path)
    store = config.store or str(RUNS / f"{config.name}.sqlite")
    print(f"read {path}: {config.to_text()}", flush=True)
    address = config.cluster.address or "auto"
    if Path(store).expanduser().exists():
        budget = config.budget  # as the file has it now: a larger one prolongs the search
        return resume_command(store, Overrides(address, evaluations=budget.evaluations, wall_s=budget.wall_s))
    return run_command(path, store, Overrides(address))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TritonEvolveError as error:
        sys.exit(f"triton-evolve: {error}")
