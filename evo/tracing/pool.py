"""Threads that each own one worker (its processes) and take the most urgent work there is."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from queue import PriorityQueue
from threading import Lock, Thread, current_thread
from typing import Generic, Protocol, TypeVar

from evo.errors import SandboxError
from evo.tracing.shelf import Closed

log = logging.getLogger(__name__)

ENDING_S = 5.0
"""How long threads may take to end after their workers did."""


class Worker(Protocol):
    """What a thread owns."""

    def start(self) -> None:
        """Makes it ready ahead of need."""

    def close(self) -> None:
        """Ends it, and from another thread interrupts what it does. Idempotent."""


W = TypeVar("W", bound=Worker)
Urgency = tuple[int, ...]
"""The smallest goes first; equal ones go in order of submission."""


class Pool(Generic[W]):
    """Thread-safe.

    Args:
        name: Of its threads.
        workers: One per thread; closed with the pool.
    """

    def __init__(self, name: str, workers: Sequence[W]) -> None:
        self._workers = tuple(workers)
        self._queue: PriorityQueue[tuple[Urgency, int, Callable[[W], None] | None]] = PriorityQueue()
        self._order = itertools.count()
        self._closed = False
        self._lock = Lock()
        self._name = name
        self._running = False
        self._threads: list[Thread] = []

    def start(self) -> None:
        """Makes all workers ready, side by side, and returns at once; without it each is made ready by its first work."""
        self._run(warm=True)

    def submit(self, work: Callable[[W], None], urgency: Urgency) -> None:
        """Queues work; it must report its result, and its exceptions, by itself.

        Raises:
            Closed: The pool is.
        """
        self._run(warm=False)
        with self._lock:
            if self._closed:
                raise Closed("this pool is closed")
            self._queue.put((urgency, next(self._order), work))

    def close(self) -> None:
        """Ends all workers at once; what is queued is never begun. Idempotent."""
        with self._lock:
            self._closed = True
            for _ in self._workers:
                self._queue.put(((), next(self._order), None))  # the empty tuple is less than all others
        for worker in self._workers:
            worker.close()
        deadline = time.monotonic() + ENDING_S
        for thread in self._threads:  # what they were starting is theirs to remove, before the interpreter ends them
            if thread is not current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self, *, warm: bool) -> None:
        with self._lock:
            if self._running or self._closed:
                return
            self._running = True
        for index, worker in enumerate(self._workers):
            # Daemons: an interpreter that ends without `close` does not wait for them, and their processes end with it.
            thread = Thread(target=self._work, args=(worker, warm), name=f"{self._name}-{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self, worker: W, warm: bool) -> None:
        try:
            if warm:
                with contextlib.suppress(SandboxError):  # its first work tells who waits for it
                    worker.start()
            while (work := self._queue.get()[2]) is not None and not self._closed:
                try:
                    work(worker)
                except Exception:  # it reports its own; this would be a fault of ours, and the thread is needed for others
                    log.exception("work on kernels failed")
        finally:
            worker.close()  # also what it started while the pool was closing
