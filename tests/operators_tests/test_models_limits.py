"""The pace of an endpoint: limits hold over any window, nobody overtakes or starves, and a pause binds everybody."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operators.models.limits import (
    BURST_S,
    LAPSE_S,
    LEAST_PAUSE_S,
    LONGEST_UNTOLD_S,
    LOOK_S,
    MAX_PAUSE_S,
    PATIENCE_S,
    RAMP_S,
    RECOVERY_S,
    Bucket,
    LocalLimiter,
    OverloadedError,
)


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def let_through(
    bucket: Bucket, clock: Clock, arrivals: list[tuple[float, int]], lateness: float = 0.0
) -> list[tuple[float, int]]:
    """When each of these requests (arrival, tokens) is sent, by callers who come back as late as that: (time, its number)."""
    waiting = [(at, number) for number, (at, _) in enumerate(arrivals)]
    heapq.heapify(waiting)
    sent = []
    for _ in range(200_000):
        if not waiting:
            return sent
        at, number = heapq.heappop(waiting)
        clock.now = max(clock.now, at)
        wait = bucket.claim(str(number), arrivals[number][1])
        if wait:
            heapq.heappush(waiting, (clock.now + wait + lateness, number))
        else:
            sent.append((clock.now, number))
    raise AssertionError("somebody starves")


def most_within(times: list[float], window_s: float) -> int:
    return max(sum(start <= other <= start + window_s for other in times) for start in times)


@given(st.floats(6, 600), st.integers(0, 2**32 - 1))
def test_requests_per_minute_hold_over_every_minute_and_are_used(per_minute: float, seed: int) -> None:
    clock, rng = Clock(), np.random.default_rng(seed)
    arrivals = [(float(at), 0) for at in np.sort(rng.uniform(0, 30, 100))]
    sent = let_through(Bucket(per_minute, None, clock), clock, arrivals)
    times = [at for at, _ in sent]
    burst = max(1.0, per_minute * BURST_S / 60)
    assert most_within(times, 60.0) <= per_minute + burst + 1
    assert [number for _, number in sent] == list(range(100)), "in order of arrival"
    needed = max(0.0, (100 - burst - 1) * 60 / per_minute)
    assert times[-1] <= max(30.0, needed + 30.0) + LOOK_S


@given(st.integers(0, 2**32 - 1))
def test_tokens_per_minute_hold_and_large_requests_do_not_starve(seed: int) -> None:
    clock, rng = Clock(), np.random.default_rng(seed)
    sizes = [int(size) for size in rng.choice([100, 1_000, 20_000], 60)]
    sent = let_through(Bucket(None, 60_000, clock), clock, [(0.0, size) for size in sizes])
    assert [number for _, number in sent] == list(range(60))
    assert sent[-1][0] <= sum(sizes) / 1_000 + LOOK_S
    for start, _ in sent:
        within = sum(sizes[number] for at, number in sent if start <= at <= start + 60)
        assert within <= 60_000 + 60_000 * BURST_S / 60 + 20_000 + 1e-6


def test_tokens_that_were_not_used_are_given_back() -> None:
    clock = Clock()
    bucket = Bucket(None, 60_000, clock)
    assert bucket.claim("a", 30_000) == 0  # larger than a burst: paid off afterwards
    assert bucket.claim("b", 1_000) == LOOK_S
    bucket.correct(29_000)
    assert bucket.claim("b", 1_000) == 0


def test_a_pause_lets_nobody_through_and_then_one_by_one() -> None:
    clock = Clock()
    bucket = Bucket(None, None, clock)
    bucket.pause(30.0)
    bucket.pause(5.0)  # a shorter one does not end it
    times = [at for at, _ in let_through(bucket, clock, [(number * 0.01, 10) for number in range(100)])]
    assert times[0] == pytest.approx(30.0, abs=1e-6)
    assert min(after - before for before, after in itertools.pairwise(times)) >= RAMP_S - 1e-9
    assert times[-1] < 30 + 100 * RAMP_S * 1.5
    clock.now = times[-1] + 60
    assert [bucket.claim(str(number), 0) for number in range(5)] == [0] * 5, "and then it is as fast as before"


def test_who_comes_back_at_the_end_of_a_pause_is_no_herd_either() -> None:
    clock = Clock()
    bucket = Bucket(None, None, clock)
    bucket.pause(2.0)
    times = [at for at, _ in let_through(bucket, clock, [(2.0, 0)] * 40)]
    assert most_within(times, 1.0) <= 1 / RAMP_S + 1


def test_the_dead_hold_nobody_up_for_long() -> None:
    clock = Clock()
    bucket = Bucket(60, None, clock)
    while bucket.claim("first", 0) == 0:
        pass
    bucket.claim("dead", 0)
    clock.now = 1.0
    assert bucket.claim("living", 0) > 0
    clock.now = 1.0 + LOOK_S + LAPSE_S
    assert bucket.claim("living", 0) == 0
    assert bucket.waiting == 0


def test_no_endpoint_can_stop_a_run_for_ever() -> None:
    clock = Clock()
    bucket = Bucket(None, None, clock)
    bucket.pause(1e12)
    bucket.pause(float("nan"))
    bucket.pause(-1.0)
    clock.now = MAX_PAUSE_S + 1e-6
    assert bucket.claim("a", 0) == 0


def test_limits_must_be_positive() -> None:
    for limits in ((0, None), (None, -1.0)):
        with pytest.raises(ValueError, match="must be positive"):
            Bucket(*limits)


def test_callers_of_one_process_wait_their_turn() -> None:
    async def all_of_them() -> float:
        limiter = LocalLimiter(Bucket(requests_per_minute=1_200))  # a burst of 120, then 20 a second
        started = time.perf_counter()
        await asyncio.gather(*(limiter.permission(0) for _ in range(126)))
        return time.perf_counter() - started

    assert 0.2 < asyncio.run(all_of_them()) < 5


def test_an_endpoint_that_stays_overloaded_is_given_up_by_all_but_who_looks_after_each_pause() -> None:
    clock = Clock()
    bucket = Bucket(clock=clock)
    bucket.pause(10**9)
    assert 0 < bucket.claim("a", 0) <= LOOK_S
    clock.now = MAX_PAUSE_S
    assert bucket.claim("a", 0) == 0
    bucket.pause(10**9)
    assert 0 < bucket.claim("b", 0) <= LOOK_S
    clock.now = PATIENCE_S
    assert bucket.claim("b", 0) == bucket.claim("c", 0) == math.inf
    assert bucket.waiting == 0
    clock.now = 2 * MAX_PAUSE_S
    assert bucket.claim("d", 0) == 0  # looks again
    clock.now += RECOVERY_S  # and nothing was heard but an answer
    assert bucket.claim("e", 0) == 0
    bucket.pause(600.0)
    clock.now += 599.0
    assert bucket.claim("f", 0) == pytest.approx(1.0), "another trouble is another beginning"


def test_who_waits_for_an_endpoint_that_is_given_up_is_told() -> None:
    clock = Clock()
    bucket = Bucket(clock=clock)
    bucket.pause(600.0)
    clock.now = 500.0
    bucket.pause(600.0)
    clock.now = PATIENCE_S
    with pytest.raises(OverloadedError, match="wait for more than 900 s"):
        asyncio.run(LocalLimiter(bucket).permission(0))


def test_an_endpoint_that_is_gone_is_looked_for_ever_more_seldom_and_found_again() -> None:
    clock = Clock()
    bucket = Bucket(clock=clock)
    looks, lasted = 0, 300.0
    while clock.now < lasted:
        wait = bucket.claim(f"look {looks}", 0)
        if wait:
            clock.now += wait
        else:
            looks += 1
            bucket.pause(None)
    assert looks < 30, "an outage of five minutes gives no model up, which 25 proposals of up to three requests each would"
    clock.now += LONGEST_UNTOLD_S + RECOVERY_S
    assert bucket.claim("well again", 0) == 0
    bucket.pause(None)
    assert bucket.claim("the next trouble begins anew", 0) == pytest.approx(LEAST_PAUSE_S)
