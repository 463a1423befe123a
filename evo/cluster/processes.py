"""What worker processes of a run inherit and what not: their end with their parent's, and no keys where none are needed."""

from __future__ import annotations

import ctypes
import os
import signal

from evo.config import RunConfig
from evo.exchanges import KEY_ENDINGS

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Makes the kernel kill this process when its parent (Ray's raylet, which dies with the driver) is gone.

    Ray's own workers notice a lost raylet within seconds; a resumed run must not wait that long for the store's ownership.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal.SIGKILL)


def forget_keys(config: RunConfig) -> None:
    """Takes keys of models out of this process's environment and that of its children: only proposers need them."""
    named = {str(section.options["key_env"]) for section in config.models if "key_env" in section.options}
    for name in list(os.environ):
        if name in named or name.upper().endswith(KEY_ENDINGS):
            del os.environ[name]
