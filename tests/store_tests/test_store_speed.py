"""Recording keeps up with many evaluators."""

from __future__ import annotations

import time
from pathlib import Path

from population_store.contract import samples
from population_store.opening import open_store


def test_evaluations_are_recorded_faster_than_they_are_made(tmp_path: Path) -> None:
    batches = [[entry for number in range(first, first + 10) for entry in samples.history(number)] for first in range(0, 300, 10)]
    seconds = []
    with open_store(str(tmp_path / "run.sqlite"), header=samples.HEADER) as store:
        for done, batch in enumerate(batches):
            begin = time.thread_time()  # of the processor: what else this machine does slows nothing down
            store.record(batch, samples.spent_after(10 * done))
            seconds.append(time.thread_time() - begin)
        assert store.counts() == {"softmax": {"passed": 300}}
    # The quickest batch: others may have found cold caches. A core reaches about 2,100 per second.
    assert 10 / min(seconds) > 500
