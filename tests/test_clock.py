"""The virtual clock: time moves only when there is nothing left to do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from voicebot import clock
from voicebot.clock import VirtualDeadlock


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def now() -> float:
    return asyncio.get_running_loop().time()


def virtual(main: Callable[[], Any]) -> Any:
    return clock.run(main(), virtual=True)


def test_time_starts_at_zero_and_a_sleep_jumps() -> None:
    async def main() -> tuple[float, float]:
        start = now()
        await asyncio.sleep(3_000_000)  # a month: the test would not end if it took any time
        return start, now()

    assert virtual(main) == (0.0, 3_000_000.0)


def test_work_takes_no_time() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(0)
        return now()

    assert virtual(main) == 0.0


def test_timers_fire_in_their_order_at_their_times() -> None:
    async def main() -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []

        async def wait(name: str, delay: float) -> None:
            await asyncio.sleep(delay)
            fired.append((name, round(now(), 9)))

        async with asyncio.TaskGroup() as tasks:
            for name, delay in (("c", 3.0), ("a", 1.0), ("d", 3.5), ("b", 1.02)):
                tasks.create_task(wait(name, delay))
        return fired

    assert virtual(main) == [("a", 1.0), ("b", 1.02), ("c", 3.0), ("d", 3.5)]


def test_a_ticker_does_not_drift() -> None:
    async def main() -> float:
        due = now()
        for _ in range(50_000):  # 20 ms frames of a call of 1000 s
            due += 0.02
            await asyncio.sleep(due - now())
        return now() - due

    assert abs(virtual(main)) < 1e-6


def test_engine_work_freezes_the_clock_though_timers_are_due_soon(pool: ThreadPoolExecutor) -> None:
    async def main() -> tuple[list[str], float]:
        order: list[str] = []
        ticking, finish = threading.Event(), threading.Event()

        async def tick() -> None:
            await asyncio.sleep(0.001)
            order.append("tick")

        def work() -> None:
            ticking.wait()
            # The loop has been given every chance to fire the timer: it has gone round 100 times since it was set.
            finish.wait()
            order.append("work")

        ticker = asyncio.create_task(tick())
        future = asyncio.get_running_loop().run_in_executor(pool, work)
        await asyncio.sleep(0)
        ticking.set()
        for _ in range(100):
            await asyncio.sleep(0)
        assert now() == 0.0
        finish.set()
        await future
        at = now()
        await ticker
        return order, at

    assert virtual(main) == (["work", "tick"], 0.0)


def test_a_result_is_delivered_before_time_moves(pool: ThreadPoolExecutor) -> None:
    """Also when there are many, one after another, with timers of a millisecond all the while."""

    async def main() -> list[float]:
        async def tick() -> None:
            while True:
                await asyncio.sleep(0.001)

        ticker = asyncio.create_task(tick())
        times = []
        for _ in range(200):
            await asyncio.get_running_loop().run_in_executor(pool, lambda: None)
            times.append(now())
        ticker.cancel()
        return times

    assert virtual(main) == [0.0] * 200


def test_the_clock_waits_for_the_last_of_several_works(pool: ThreadPoolExecutor) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        barrier = threading.Barrier(3)
        first = [loop.run_in_executor(pool, barrier.wait) for _ in range(3)]
        timer = asyncio.create_task(asyncio.sleep(1))
        await asyncio.gather(*first)
        at = [now()]
        await timer
        at.append(now())
        return at

    assert virtual(main) == [0.0, 1.0]


def test_a_worker_streams_into_the_loop_while_time_stands_still(pool: ThreadPoolExecutor) -> None:
    async def main() -> list[tuple[int, float]]:
        loop = asyncio.get_running_loop()
        tokens: asyncio.Queue[int | None] = asyncio.Queue()
        taken = threading.Semaphore(0)
        got: list[tuple[int, float]] = []

        def generate() -> None:
            for token in range(50):
                loop.call_soon_threadsafe(tokens.put_nowait, token)
                taken.acquire()  # the loop runs between two tokens
            loop.call_soon_threadsafe(tokens.put_nowait, None)

        timer = asyncio.create_task(asyncio.sleep(0.001))
        work = loop.run_in_executor(pool, generate)
        while (token := await tokens.get()) is not None:
            got.append((token, now()))
            taken.release()
        await work
        await timer
        return got

    assert virtual(main) == [(token, 0.0) for token in range(50)]


def test_a_fault_in_the_engine_arrives_and_time_goes_on(pool: ThreadPoolExecutor) -> None:
    async def main() -> float:
        with pytest.raises(ZeroDivisionError):
            await asyncio.get_running_loop().run_in_executor(pool, lambda: 1 / 0)
        await asyncio.sleep(1)
        return now()

    assert virtual(main) == 1.0


def test_cancelled_work_that_still_runs_keeps_the_clock_until_it_is_done(pool: ThreadPoolExecutor) -> None:
    async def main() -> tuple[bool, float]:
        started, finish = threading.Event(), threading.Event()

        def work() -> None:
            started.set()
            finish.wait()

        future = asyncio.get_running_loop().run_in_executor(pool, work)
        started.wait()
        future.cancel()
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(finish.set)
        await asyncio.sleep(2)
        return finish.is_set(), now()

    assert virtual(main) == (True, 2.0)


def test_work_that_is_cancelled_before_it_began_does_not_stop_the_clock() -> None:
    async def main(pool: ThreadPoolExecutor) -> float:
        loop = asyncio.get_running_loop()
        finish = threading.Event()
        busy = loop.run_in_executor(pool, finish.wait)
        queued = loop.run_in_executor(pool, lambda: None)
        queued.cancel()
        await asyncio.sleep(0)
        finish.set()
        await busy
        await asyncio.sleep(5)
        return now()

    with ThreadPoolExecutor(1) as one:
        assert clock.run(main(one), virtual=True) == 5.0


def test_work_that_an_executor_refuses_does_not_stop_the_clock() -> None:
    async def main() -> int:
        pool = ThreadPoolExecutor(1)
        pool.shutdown()
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="shutdown"):
            loop.run_in_executor(pool, lambda: None)
        return loop._virtual.working  # type: ignore[attr-defined]  # a sleep here would hang

    assert virtual(main) == 0


def test_a_timeout_fires_at_its_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(40)
        return now()

    assert virtual(main) == 30.0


def test_a_timeout_never_fires_during_engine_work(pool: ThreadPoolExecutor) -> None:
    async def main() -> str:
        begun = threading.Event()
        async with asyncio.timeout(0.000001):
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(pool, lambda: begun.wait() and "done")
            for _ in range(50):
                await asyncio.sleep(0)
            begun.set()
            return await work

    assert virtual(main) == "done"


def test_waiting_for_nothing_is_a_deadlock() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(VirtualDeadlock):
        virtual(main)


def test_the_default_executor_is_refused() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="own executor"):
            await asyncio.get_running_loop().run_in_executor(None, lambda: None)
        with pytest.raises(ValueError, match="own executor"):
            await asyncio.to_thread(lambda: None)
        await asyncio.sleep(1)  # and nothing is counted as work

    virtual(main)


def test_two_runs_see_the_same_times(pool: ThreadPoolExecutor) -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def engine(name: str, pause: float) -> None:
            for _ in range(20):
                await asyncio.sleep(pause)
                await asyncio.get_running_loop().run_in_executor(pool, sum, range(1000))
                seen.append((name, now()))

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(engine("a", 0.02))
            tasks.create_task(engine("b", 0.03))
        return sorted(seen)

    assert virtual(main) == virtual(main)


def test_without_virtual_it_is_the_ordinary_loop() -> None:
    async def main() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert not issubclass(clock.run(main()), clock.VirtualLoop)
    assert virtual(main) is clock.VirtualLoop
