"""What is kept, who does the work, and what becomes of those who wait."""

from __future__ import annotations

from concurrent.futures import CancelledError

import pytest

from evo.tracing.shelf import Shelf


def shelf(capacity: int = 10) -> Shelf[str]:
    return Shelf(capacity, len, lambda result: not result.startswith("!"))


def put(on: Shelf[str], key: str, result: str) -> None:
    future, new = on.ask(key, 0)
    assert new
    assert on.begin(key)
    on.settle(key, result)
    assert future.result() == result


def test_one_does_the_work_and_all_who_asked_get_it() -> None:
    on = shelf()
    one, new = on.ask("k", 0)
    other, again = on.ask("k", 0)
    assert (new, again) == (True, False)
    assert on.begin("k")
    assert not on.begin("k")
    on.settle("k", "done")
    assert one.result() == other.result() == "done"
    assert on.ask("k", 0)[0].result() == "done"
    assert not on.begin("k")


def test_the_least_recently_used_make_room() -> None:
    on = shelf(10)
    for key in "abc":
        put(on, key, key * 3)
    assert not on.ask("a", 0)[1]
    put(on, "d", "ddd")
    assert on.weight == 9
    assert [on.ask(key, 0)[1] for key in "acdb"] == [False, False, False, True]


def test_what_weighs_more_than_everything_is_given_and_not_kept() -> None:
    on = shelf(2)
    put(on, "k", "too long")
    assert on.weight == 0
    assert on.ask("k", 0)[1]


def test_a_result_that_may_not_last_is_given_to_those_who_asked_alone() -> None:
    on = shelf()
    put(on, "k", "!late")
    assert on.ask("k", 0)[1]


def test_an_error_reaches_all_who_wait_and_the_next_tries_again() -> None:
    on = shelf()
    futures = [on.ask("k", 0)[0] for _ in range(2)]
    on.begin("k")
    on.fail("k", OSError("no process"))
    for future in futures:
        with pytest.raises(OSError, match="no process"):
            future.result()
    put(on, "k", "done")


def test_who_is_in_more_of_a_hurry_queues_the_work_again() -> None:
    on = shelf()
    assert on.ask("k", 5)[1]
    assert on.ask("k", 1)[1]
    assert not on.ask("k", 3)[1]
    on.begin("k")
    assert not on.ask("k", 0)[1]


def test_work_that_nobody_wants_is_not_begun() -> None:
    on = shelf()
    asked = [on.ask("k", 0)[0] for _ in range(2)]
    on.give_up("k", asked[0])
    assert not asked[0].cancelled()
    on.give_up("k", asked[1])
    assert asked[0].cancelled()
    assert not on.begin("k")


def test_giving_up_an_answered_question_leaves_a_later_one_alone() -> None:
    on = shelf()
    old = on.ask("k", 0)[0]
    on.begin("k")
    on.settle("k", "!late")
    new = on.ask("k", 0)[0]
    on.give_up("k", old)
    assert on.begin("k")
    on.settle("k", "done")
    assert new.result() == "done"


def test_closing_ends_who_waits() -> None:
    on = shelf()
    waiting = on.ask("k", 0)[0]
    on.close()
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(RuntimeError, match="closed"):
        on.ask("k", 0)
    on.settle("k", "too late")
    assert on.weight == 0
