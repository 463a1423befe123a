"""Checks share the device, timing has it alone, nobody starves; device seconds are divided among who used it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from evo.evaluation.stages import StageClock
from evo.evaluation.turns import Sharing
from tests.evo_tests.running_processes import wait_until


def test_checks_run_side_by_side_and_timing_alone() -> None:
    sharing, lock = Sharing(), threading.Lock()
    now = {"shared": 0, "alone": 0}
    seen: list[tuple[int, int]] = []

    def use(kind: str) -> None:
        with sharing.shared() if kind == "shared" else sharing.alone():
            with lock:
                now[kind] += 1
                seen.append((now["shared"], now["alone"]))
            time.sleep(0.01)
            with lock:
                now[kind] -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, ["shared", "shared", "shared", "alone"] * 10))
    assert all(alone == 0 or (shared, alone) == (0, 1) for shared, alone in seen)
    assert max(shared for shared, _ in seen) > 1, "checks never overlapped"


def test_who_waits_to_be_alone_is_not_kept_waiting_by_newcomers() -> None:
    sharing, leave, order = Sharing(), threading.Event(), list[str]()

    def first() -> None:
        with sharing.shared():
            inside.set()
            leave.wait(60)

    def alone() -> None:
        with sharing.alone():
            order.append("alone")

    def newcomer() -> None:
        with sharing.shared():
            order.append("newcomer")

    inside = threading.Event()
    threads = [threading.Thread(target=function) for function in (first, alone, newcomer, newcomer)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    wait_until(lambda: bool(sharing._waiting), "one who waits to be alone", 60)
    for thread in threads[2:]:
        thread.start()
    time.sleep(0.05)  # time for newcomers to do what they must not
    leave.set()
    for thread in threads:
        thread.join()
    assert order == ["alone", "newcomer", "newcomer"]


def test_checks_go_on_beside_an_examination_though_one_waits_to_be_timed() -> None:
    sharing, examined, order = Sharing(), threading.Event(), list[str]()

    def alone() -> None:
        with sharing.alone():
            order.append("timed")

    with sharing.examining():
        thread = threading.Thread(target=alone)
        thread.start()
        wait_until(lambda: bool(sharing._waiting), "one who waits to be alone", 60)

        def check() -> None:
            with sharing.shared():
                order.append("checked")
                examined.set()

        other = threading.Thread(target=check)
        other.start()
        assert examined.wait(60), "who waits for an examination kept a check waiting, too"
    thread.join()
    other.join()
    assert order == ["checked", "timed"]
    late = threading.Thread(target=alone)
    with sharing.shared():
        late.start()
        wait_until(lambda: bool(sharing._waiting), "one who waits to be alone", 60)
        assert not sharing._examining
    late.join()


def test_who_is_alone_may_ask_again() -> None:
    sharing = Sharing()
    with sharing.alone(), sharing.shared(), sharing.alone():
        pass
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(lambda: sharing.alone().__enter__()).result(timeout=60) is None


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_device_seconds_are_divided_among_who_had_the_device() -> None:
    hand = Hand()
    clock = StageClock(hand)
    entered, leave, mine = threading.Event(), threading.Event(), []

    def other() -> None:
        with clock.device():
            entered.set()
            leave.wait(60)
        mine.append(clock.my_device_s)

    with clock.device():
        hand.now = 2.0
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(60)
        hand.now = 6.0
    leave.set()
    thread.join()
    hand.now = 100.0
    assert clock.device_s == pytest.approx(6.0), "the union: nobody had it afterwards"
    assert clock.my_device_s == pytest.approx(2.0 + 4.0 / 2)
    assert mine == [pytest.approx(2.0)]


def test_stages_and_counts_add_up() -> None:
    hand = Hand()
    clock = StageClock(hand)
    for _ in range(3):
        with clock.stage("check"):
            hand.now += 1.5
        clock.count("pairs", 4)
    assert clock.seconds["check"] == pytest.approx(4.5)
    assert clock.counts == {"pairs": 12}
    assert clock.seconds["judge"] == 0.0


def test_seconds_of_a_stage_within_another_count_once() -> None:
    hand = Hand()
    clock = StageClock(hand)
    for _ in range(2):
        with clock.stage("check"):
            hand.now += 1.0
            with clock.stage("wait for judge"):
                hand.now += 2.0
            with clock.stage("judge"):
                hand.now += 4.0
                with clock.stage("tune"):
                    hand.now += 8.0
        with clock.stage("time"):
            hand.now += 16.0
    assert {name: seconds for name, seconds in clock.seconds.items() if seconds} == pytest.approx(
        {"check": 2.0, "wait for judge": 4.0, "judge": 8.0, "tune": 16.0, "time": 32.0}
    )
