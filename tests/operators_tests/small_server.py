"""A small server of the chat API as a program, which a run starts: it may load for long, break, or have a worker."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.operators_tests.loopback import Answer, Loopback, reply


def main() -> None:
    """Listens until it is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--says", default="", help="to everything; else it answers kernels with kernels")
    parser.add_argument("--loading-s", type=float, default=0.0)
    parser.add_argument("--answers", type=int, default=10**9, help="after which it breaks")
    parser.add_argument("--broken", default="", help="what it says before it ends at once")
    parser.add_argument("--pids", type=Path, help="it writes its process here, and that of its worker")
    given = parser.parse_args()
    if given.broken:
        sys.exit(given.broken)
    if given.pids:
        worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with given.pids.open("a") as file:
            file.write(f"{os.getpid()} {worker.pid}\n")

    def answered(body: dict[str, Any]) -> Answer:
        if server.count >= given.answers:
            sys.stderr.write("CUDA out of memory\n")
            sys.stderr.flush()
            os._exit(3)
        if given.says:
            return reply(given.says)
        from tests.evo_tests.test_config_llm import answered as with_kernels

        return with_kernels(body)

    with Loopback(answered, keyless=True, port=given.port, loading_s=given.loading_s) as server:
        time.sleep(600)


if __name__ == "__main__":
    main()
