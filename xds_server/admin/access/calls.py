"""Runs each call of the admin API, whichever face it came by: who calls, may it, and the record.

Rules:

1. A call whose caller is not known, or has not the role that ``ACCESS`` names, ends before its
   handler runs.
2. The author of a change is the caller's identity. What the request says as author is added to it
   in brackets.
3. Every call leaves a line in the audit trail, with how it ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import grpc
from google.protobuf.message import Message

from tidegate_common.tls.roles import NONE, Peer
from xds_server.admin.access.caller import ACCESS, CHANGES, CallEnded, Caller
from xds_server.admin.access.trail import CallRecord, arguments_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from tidegate_common.tls.rpc import OnRefused
    from xds_server.admin.access.authority import Authority
    from xds_server.admin.access.caller import CallOrigin
    from xds_server.admin.access.trail import AuditTrail

    Handler = Callable[[Any, Any], Awaitable[Any]]


class CallContext:
    """The part of ``grpc.aio.ServicerContext`` that the services use."""

    async def abort(self, code: grpc.StatusCode, text: str = "") -> NoReturn:
        """End the call.

        Raises:
            CallEnded: Always.
        """
        raise CallEnded(code, text)


@dataclass(frozen=True, slots=True)
class CallClocks:
    """Time of the record."""

    monotonic_s: Callable[[], float]
    unix_ms: Callable[[], int]


@dataclass(slots=True)
class _Running:
    """A call that runs."""

    request: Any = None
    answer: Any = None


def _has_options(request: Any) -> bool:
    """Return whether a request has options; what its caller sent may be no message."""
    return isinstance(request, Message) and "options" in request.DESCRIPTOR.fields_by_name


class Calls:
    """Runs calls; see the module's rules.

    Args:
        authority: Decides who calls.
        trail: Keeps the record.
        clocks: Time.
        on_refused: Called with address, names and reason of each refused call.
    """

    def __init__(
        self,
        authority: Authority,
        trail: AuditTrail,
        clocks: CallClocks,
        on_refused: OnRefused = lambda *_: None,
    ) -> None:
        self._authority = authority
        self._trail = trail
        self._clocks = clocks
        self._on_refused = on_refused

    async def run(
        self,
        path: str,
        request: Any,
        seen: CallOrigin,
        handler: Handler,
        fill: Callable[[Any], Awaitable[None]] | None = None,
    ) -> Any:
        """Run a call and return its answer.

        Args:
            path: ``/package.Service/Method``.
            request: The message.
            seen: What the port knows of the caller.
            handler: Answers the message.
            fill: Reads the message, once it is known that the call is allowed; ``None`` = it is
                complete.

        Raises:
            CallEnded: It was refused, or ended with an error.
        """
        try:
            async with self._recorded(path, seen) as (caller, running):
                running.request = request
                if fill is not None:
                    await fill(request)
                if _has_options(request):
                    request.options.author = caller.author(request.options.author)
                running.answer = await handler(request, CallContext())
        except CallEnded:
            await self._trail.settle()
            raise
        await self._trail.settle()
        return running.answer

    async def stream(
        self,
        path: str,
        requests: Any,
        seen: CallOrigin,
        handler: Callable[[Any, Any], AsyncIterator[Any]],
    ) -> AsyncIterator[Any]:
        """Run a call with streams; the record is of its end.

        Raises:
            CallEnded: It was refused, or ended with an error.
        """
        async with self._recorded(path, seen):
            async for answer in handler(requests, CallContext()):
                yield answer

    @contextlib.asynccontextmanager
    async def _recorded(
        self, path: str, seen: CallOrigin
    ) -> AsyncIterator[tuple[Caller, _Running]]:
        began, verdict, running = self._clocks.monotonic_s(), "OK", _Running()
        caller, allowed = Caller(seen.address, "unknown", "nobody", NONE), False
        try:
            caller = self._authority.caller(seen)
            self._check(path, caller, seen.peer)
            allowed = True
            yield caller, running
        except CallEnded as ended:
            verdict = ended.code.name
            if not allowed:
                self._on_refused(seen.address, seen.peer, ended.text)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            verdict = grpc.StatusCode.CANCELLED.name
            raise
        except BaseException:
            verdict = grpc.StatusCode.UNKNOWN.name
            raise
        finally:
            asked = running.request
            self._trail.add(
                CallRecord(
                    self._clocks.unix_ms(),
                    caller,
                    path.rpartition("/")[2],
                    verdict,
                    (self._clocks.monotonic_s() - began) * 1000,
                    arguments_of(asked) if isinstance(asked, Message) else {},
                    getattr(running.answer, "revision", None) if path in CHANGES else None,
                    allowed and path in CHANGES,
                )
            )

    @staticmethod
    def _check(path: str, caller: Caller, peer: Peer) -> None:
        needed = ACCESS.methods.get(path, NONE)
        if caller.roles & needed:
            return
        if caller.how == "certificate":
            reason = ACCESS.refusal(path, peer, caller.roles) or "not allowed"
        else:
            roles = " or ".join(sorted(needed)) or "of nobody"
            reason = f"{path:.120} needs the role {roles}; {caller.identity} is {caller.rank}"
        raise CallEnded(grpc.StatusCode.PERMISSION_DENIED, reason)
