"""Which calls are owed an answer now: speculation gives way to them."""

from __future__ import annotations

from collections.abc import Callable


class Load:
    """Answers in the making, over all calls that share the engines.

    A committed one is begun at once, always. A speculative one is begun only while fewer than `most` are in
    the making, and is shed when a committed one needs its place: that caller waits, this one does not yet.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: set[str] = set()
        self._speculating: dict[str, Callable[[], None]] = {}

    def others_wait(self, call_id: str) -> bool:
        """True while the caller of another call waits for the first sound of an answer."""
        return bool(self._waiting - {call_id})

    def may_speculate(self, call_id: str) -> bool:
        return len((self._waiting | self._speculating.keys()) - {call_id}) < self._most

    def update(self, call_id: str, *, waiting: bool, shed: Callable[[], None] | None) -> None:
        """Where a call stands: whether its caller waits, and how to shed what it does in advance, if any."""
        if shed and not waiting:
            self._speculating.setdefault(call_id, shed)
        else:
            self._speculating.pop(call_id, None)
        if not waiting:
            self._waiting.discard(call_id)
        elif call_id not in self._waiting:
            self._waiting.add(call_id)
            while self._speculating and len(self._waiting) + len(self._speculating) > self._most:
                self._speculating.pop(next(iter(self._speculating)))()
