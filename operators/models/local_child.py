"""The process of a local model: requests come in as lines of JSON, replies go out as such; it ends with whoever started it.

llama.cpp ends its process on what it cannot do, and a model may be too large for the machine: neither must take a proposer along.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any

from operators.models.local_engine import LocalEngine, LocalModelError, Wanted


def main() -> None:
    """Loads the model that the first line names, says so, and answers every further line."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # llama.cpp writes what it likes, and must not write between our lines
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")  # where memory ends, this process goes first
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_listen, args=(lines,), daemon=True).start()

    def say(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        engine = LocalEngine(**json.loads(lines.get()))
    except (LocalModelError, MemoryError) as error:
        say({"error": str(error) or "no memory for the model"})
        return
    say({"context": engine.context})
    while True:
        asked = json.loads(lines.get())
        deadline = time.monotonic() + asked.pop("seconds")
        try:
            given = engine.answer(Wanted(**asked), deadline)
        except LocalModelError as error:
            say({"error": str(error)})
        else:
            say(vars(given))


def _listen(lines: queue.Queue[str]) -> None:
    """Takes lines; at their end whoever started us is gone, however it ended, and this process is of no more use."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


if __name__ == "__main__":
    main()
