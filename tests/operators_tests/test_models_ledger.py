"""Money is reserved before it is spent: caps hold under concurrency, prices are right, and bad price files say what is wrong."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo.errors import InputError, SpendLimitError
from operators.models.ledger import Ledger
from operators.models.prices import PRICES, Price, read_prices

HAIKU = "claude-haiku-5-5"


async def spend(ledger: Ledger, bound: float, bill: float) -> bool:
    try:
        reservation = await ledger.reserve(bound)
    except SpendLimitError:
        return False
    await asyncio.sleep(0)
    reservation.settle(bill)
    return True


def test_200_calls_at_once_never_overrun_the_cap_and_use_it_up() -> None:
    rng = np.random.default_rng(7)
    ledger = Ledger(1.0)
    seen: list[float] = []

    async def one(bound: float, bill: float) -> bool:
        done = await spend(ledger, bound, bill)
        seen.append(ledger.spent + ledger.reserved)
        return done

    async def all_of_them() -> list[bool]:
        return await asyncio.gather(*(one(bound, bound * rng.random()) for bound in rng.uniform(0.01, 0.1, 200)))

    done = asyncio.run(all_of_them())
    assert max(seen) <= 1.0
    assert 0.9 < ledger.spent <= 1.0
    assert 10 < sum(done) < 200
    assert ledger.reserved == 0


def test_several_threads_with_their_own_event_loops_share_one_cap() -> None:
    ledger = Ledger(1.0)
    done: list[bool] = []

    async def many() -> list[bool]:
        return await asyncio.gather(*(spend(ledger, 0.05, 0.02) for _ in range(50)))

    threads = [threading.Thread(target=lambda: done.extend(asyncio.run(many()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert len(done) == 200
    assert ledger.spent == pytest.approx(0.02 * sum(done))
    assert 0.95 < ledger.spent <= 1.0


def test_a_request_waits_for_money_in_flight_instead_of_ending_the_search() -> None:
    async def scenario() -> float:
        ledger = Ledger(1.0)
        first = await ledger.reserve(0.8)
        waiting = asyncio.create_task(ledger.reserve(0.8))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        first.settle(0.1)
        (await waiting).settle(0.2)
        return ledger.spent

    assert asyncio.run(scenario()) == pytest.approx(0.3)


def test_the_end_of_the_money_is_told_in_dollars() -> None:
    ledger = Ledger(1.0, spent_dollars=0.9)
    with pytest.raises(
        SpendLimitError, match=r"may cost up to \$0\.2000.*budget of \$1\.0000 \$0\.1000 is left; raise budget\.dollars"
    ):
        asyncio.run(ledger.reserve(0.2))
    assert asyncio.run(spend(ledger, 0.1, 0.1))


def test_a_cancelled_waiter_holds_nothing() -> None:
    async def scenario() -> None:
        ledger = Ledger(1.0)
        first = await ledger.reserve(1.0)
        waiting = asyncio.create_task(ledger.reserve(1.0))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        first.settle(0.0)
        assert (ledger.spent, ledger.reserved) == (0, 0)

    asyncio.run(scenario())


def test_tokens_are_a_budget_of_their_own() -> None:
    async def scenario() -> None:
        ledger = Ledger(None, 1_000)
        first = await ledger.reserve(5.0, 600)
        waiting = asyncio.create_task(ledger.reserve(5.0, 500))
        await asyncio.sleep(0.01)
        assert not waiting.done(), "requests in flight stand in its way"
        first.settle(5.0, 100)
        second = await waiting
        second.settle(1.0, 500)
        assert (ledger.spent, ledger.spent_tokens, ledger.reserved_tokens) == (6.0, 600, 0)
        with pytest.raises(SpendLimitError, match=r"up to 401 tokens, but of the budget of 1000 tokens 400 are left"):
            await ledger.reserve(0.0, 401)

    asyncio.run(scenario())


def test_what_a_dead_holder_held_counts_as_spent_and_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        ledger = Ledger(1.0, spent_dollars=0.1, lost_dollars=0.2)
        held = await ledger.reserve(0.5)
        waiting = asyncio.create_task(ledger.reserve(0.4))
        await asyncio.sleep(0.01)
        held.lose()
        with pytest.raises(SpendLimitError, match=r"\$0\.2000 is left"):
            await waiting
        held.settle(0.0)
        assert (ledger.spent, ledger.reserved) == (0.1, pytest.approx(0.7))

    asyncio.run(scenario())


def test_settling_twice_books_once_and_a_negative_bill_is_refused() -> None:
    async def scenario() -> None:
        ledger = Ledger()
        reservation = await ledger.reserve(5.0)
        with pytest.raises(ValueError, match="0 or more"):
            reservation.settle(-1.0)
        reservation.settle(2.0)
        reservation.settle(2.0)
        assert (ledger.spent, ledger.reserved, ledger.cap) == (2.0, 0, None)

    asyncio.run(scenario())
    with pytest.raises(ValueError, match="cap"):
        Ledger(float("nan"))


def test_our_prices() -> None:
    table = read_prices()
    assert table.dated in PRICES.read_text()
    rates = {name: (price.input, price.output) for name, price in table.models.items()}
    assert rates["claude-opus-5-5"] == (4, 20)
    assert rates["claude-sonnet-5-5"] == (2, 10)
    assert rates[HAIKU] == (0.1, 0.5)
    assert table.find(f"{HAIKU}-20260901") == table.models[HAIKU]
    assert table.find(f"{HAIKU}-fast") is None


def test_a_long_prompt_makes_every_token_dearer_where_the_price_says_so() -> None:
    price = read_prices().models[HAIKU]
    assert price.dollars(fresh=100_000, output=1_000) == pytest.approx(0.0105)
    assert price.dollars(fresh=60_000, read=40_001, output=1_000) == pytest.approx(5 * (0.006 + 0.00040001 + 0.0005))


@given(*[st.integers(0, 300_000)] * 5)
def test_the_reserved_amount_covers_every_bill(fresh: int, write_5m: int, write_1h: int, read: int, output: int) -> None:
    for price in read_prices().models.values():
        bill = price.dollars(fresh=fresh, output=output, write_5m=write_5m, write_1h=write_1h, read=read)
        assert bill <= price.bound(fresh + write_5m + write_1h + read, output) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("not toml", "cannot be read"),
        ("[models]", "must have `dated`"),
        ('dated = "x"\n[models.m]\ninput = 1', "models.m"),
        ('dated = "x"\n[models.m]\ninput = -1\noutput = 1\nwrite_5m = 1\nwrite_1h = 1\nread = 1', "not negative"),
        ('dated = "x"\n[models.m]\ninputs = 1', "allowed: input, output, write_5m"),
        ('dated = "x"\n[models.m]\ninput = nan\noutput = 1\nwrite_5m = 1\nwrite_1h = 1\nread = 1', "finite"),
        ('dated = "x"\n[models.m]\ninput = 1\noutput = inf\nwrite_5m = 1\nwrite_1h = 1\nread = 1', "finite"),
        (
            'dated = "x"\n[models.m]\ninput = 1\noutput = 1\nwrite_5m = 1\nwrite_1h = 1\nread = 1\nlong_factor = nan',
            "long_factor",
        ),
    ],
)
def test_a_bad_price_file_says_what_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as caught:
        read_prices(path)
    assert str(path) in str(caught.value)


def test_an_own_price_comes_before_ours(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(f'dated = "2027-01-01"\n[models.{HAIKU}]\ninput = 9\noutput = 9\nwrite_5m = 9\nwrite_1h = 9\nread = 9')
    table = read_prices(path)
    assert table.find(HAIKU) == Price(9, 9, 9, 9, 9)
    assert table.find("claude-opus-5-5") == read_prices().find("claude-opus-5-5")
