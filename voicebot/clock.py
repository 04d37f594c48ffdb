"""One monotonic clock for a call, and a virtual one for replays and tests.

Everything in a call reads `asyncio.get_running_loop().time()`, which is `time.monotonic()` on an
ordinary loop. `VirtualLoop` replaces that clock: its time stands still while there is anything to do
(a ready callback, engine work in a thread) and jumps to the next timer when there is not. So a
recorded call runs as fast as the engines allow, engine work takes no time on the call's clock, and
every run of the same call sees the same times.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


class VirtualDeadlock(RuntimeError):
    """Nothing is ready, no timer is set and no engine works: the call would wait for ever."""


class _VirtualSelector(selectors.BaseSelector):
    """Where the loop would sleep, moves its clock instead. Real sockets and wake-ups still work."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.now = 0.0
        self.working = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.working:  # time stands still until the engine's thread wakes the loop
            return self._real.select(None)
        if timeout is None:
            raise VirtualDeadlock("nothing is ready, no timer is set and no engine works")
        self.now += timeout
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return cast("Mapping[Any, selectors.SelectorKey]", self._real.get_map())


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose `time()` starts at 0 and moves only when nothing is left to do."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(  # type: ignore[override]  # typeshed wants its private TypeVarTuple
        self, executor: concurrent.futures.Executor | None, func: Callable[..., _T], *args: Any
    ) -> asyncio.Future[_T]:
        if executor is None:
            raise ValueError("on the virtual clock engine work needs its own executor")
        work = executor.submit(func, *args)
        self._virtual.working += 1
        future = asyncio.wrap_future(work, loop=self)
        # After wrap_future's own callback, so that the result is delivered before time may move.
        work.add_done_callback(lambda _: self._finished())
        return future

    def _finished(self) -> None:
        if not self.is_closed():
            self.call_soon_threadsafe(self._one_less)

    def _one_less(self) -> None:
        self._virtual.working -= 1


def run(main: Coroutine[Any, Any, _T], *, virtual: bool = False) -> _T:
    """`asyncio.run`, on the virtual clock if asked."""
    with asyncio.Runner(loop_factory=VirtualLoop if virtual else None) as runner:
        return runner.run(main)
