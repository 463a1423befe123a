"""Keeps a model's server: it starts the server, and ends it with all that it started when whoever wanted it is gone, however that ended.

Servers start workers, and do not look whether somebody still needs them; one that is left behind keeps a GPU's memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

from evo.descendants import end_children, take_in_orphans

GRACE_S = 4.0
"""For a server to end by itself, once told to."""

_PR_SET_PDEATHSIG = 1
_KEPT = 4_000
"""Last bytes of the server's own words that are told when it ended."""


def main() -> None:
    """Starts the command of the arguments; its status is ours."""
    take_in_orphans()
    try:
        server = subprocess.Popen(
            sys.argv[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=_prepared
        )
    except (OSError, subprocess.SubprocessError) as error:
        sys.stderr.write(f"{sys.argv[1]} cannot be started: {getattr(error, 'strerror', None) or error}")
        sys.exit(127)
    words = bytearray()
    reader = threading.Thread(target=_hear, args=(server, words), daemon=True)
    reader.start()
    threading.Thread(target=_end_with_stdin, args=(server,), daemon=True).start()
    status = server.wait()
    end_children(GRACE_S)
    reader.join(1.0)
    sys.stderr.write(bytes(words).decode("utf-8", "replace"))
    sys.exit(status if status >= 0 else 128 - status)


def _prepared() -> None:
    """Between fork and the server's program: it ends with this process, and where memory ends it is the first to go."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _hear(server: subprocess.Popen[bytes], words: bytearray) -> None:
    assert server.stdout is not None, "opened as a pipe"
    while heard := os.read(server.stdout.fileno(), 65_536):
        words += heard
        del words[:-_KEPT]


def _end_with_stdin(server: subprocess.Popen[bytes]) -> None:
    while os.read(0, 65_536):
        pass
    server.terminate()
    time.sleep(GRACE_S)
    server.kill()


if __name__ == "__main__":
    main()
