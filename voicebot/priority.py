"""Which engine goes first when there are more of them than cores."""

from __future__ import annotations

import contextlib
import os
import threading


def yield_cores(niceness: int) -> None:
    """Lowers the calling thread's priority, and that of the threads it starts from here on.

    On Linux niceness is a thread's own. Where a system refuses, everything still works, a little slower.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
