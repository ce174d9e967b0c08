"""Holds tests to what the unit layer is: no sockets, no processes, no sleep.

Rules:

1. An audit hook of the interpreter sees what Python asks of the system, wherever it is called: a
   socket that is bound, connected or sends to an address, a look-up of a name, a process. A pair of
   sockets, which an event loop has, is allowed.
2. gRPC and ZeroMQ open sockets without Python: the methods that do are watched, once loaded. So is
   ``time.sleep``, in the test's own thread.
3. ``fc-list`` may be started: matplotlib asks it for the fonts once for each account, where it is
   imported first.
4. The call raises ``UnitLimitError``, so that nothing happens; the test fails also where its caller
   takes that error for another one.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

SOCKETS: Final = frozenset(
    {
        *("socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg"),
        *("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"),
    }
)
PROCESSES: Final = frozenset(
    {
        *("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"),
        *("os.exec", "os.spawn", "pty.spawn"),
    }
)
EVENTS: Final = SOCKETS | PROCESSES
FONTS: Final = "fc-list"
NATIVE: Final = {
    "grpc._server": ("_Server", ("add_insecure_port", "add_secure_port")),
    "grpc.aio._server": ("Server", ("add_insecure_port", "add_secure_port")),
    "zmq.sugar.socket": ("Socket", ("bind", "connect")),
}
"""Modules of extensions, and the methods of a class there that open sockets."""
INSTEAD: Final = "move the test to tests/contract (layers: CONTRIBUTING.md, Tests)"


class UnitLimitError(RuntimeError):
    """A unit test opened a socket, started a process or slept."""


class UnitLimits:
    """Watches this process while a test runs; the hook stays, since Python can remove none."""

    def __init__(self) -> None:
        self._found: list[str] = []
        self._on = False
        self._native: set[str] = set()
        sys.addaudithook(self._audit)
        self._watch(time, "sleep", "sleeps: move the clock (tests/support/time.py)")

    def begin(self) -> None:
        """Watch from here on."""
        for name in [each for each in NATIVE if each in sys.modules and each not in self._native]:
            self._native.add(name)
            owner, methods = NATIVE[name]
            for method in methods:
                what = f"opens a socket: {method} of {name}; {INSTEAD}"
                self._watch(getattr(sys.modules[name], owner), method, what)
        self._found.clear()
        self._on = True

    def end(self) -> str | None:
        """Watch no longer; return what the test did first that no unit test does."""
        self._on = False
        return self._found[0] if self._found else None

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._on and event in EVENTS and FONTS not in arguments[:1]:
            what = "starts a process" if event in PROCESSES else "opens a socket"
            asked = " ".join(f"{each!r:.200}" for each in arguments[1:2])
            self._refuse(f"{what}: {event} {asked}; {INSTEAD}")

    def _watch(self, owner: Any, name: str, what: str) -> None:
        inner: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(inner)
        def watched(*arguments: Any, **options: Any) -> Any:
            if self._on and threading.current_thread() is threading.main_thread():
                self._refuse(what)
            return inner(*arguments, **options)

        setattr(owner, name, watched)

    def _refuse(self, what: str) -> None:
        self._found.append(what)
        raise UnitLimitError(f"a unit test {what}")
