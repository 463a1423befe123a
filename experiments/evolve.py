"""What `ray submit configs/evolve.yaml experiments/evolve.py` runs on the head: the search of that file, as a job of the cluster."""

from __future__ import annotations

import sys
from pathlib import Path

from evo.commands.submitting import SubmitOptions, submit_command
from evo.errors import ConfigError, TritonEvolveError

BOOTSTRAP = Path("~/ray_bootstrap_config.yaml").expanduser()
"""Where the launcher puts the cluster file on the head."""

ACTIONS = ("status", "logs", "stop")


def main(arguments: list[str]) -> int:
    """Starts the search, goes on with it, or follows the one that runs; with one of `ACTIONS`, that instead."""
    if len(arguments) > 1 or not set(arguments) <= set(ACTIONS):
        raise ConfigError("evolve.py", given=" ".join(arguments), allowed=["nothing", *ACTIONS], action="the rest is in the file")
    return submit_command(BOOTSTRAP, SubmitOptions(action=arguments[0] if arguments else "follow"))


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except TritonEvolveError as error:
        sys.exit(f"triton-evolve: {error}")
