"""Tells the control server how this picker stands in its group, and takes the group's list.

Rules:

1. A standing is sent when it differs from the last one sent; the control server answers with the
   list and the addresses of all pickers, and again when they change.
2. A lost stream is opened again after a delay, or as soon as ADS is connected again. Until then the
   last list holds.
3. Before a picker ends it says that it places no longer, and waits ``LEAVE_S`` at most until it is
   not listed any more, so that the others go on at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

import grpc
import structlog

from ext_proc.workers.news import Listed
from tidegate_api.addresses import MAX_MEMBERS
from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_common.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ext_proc.workers.group.members import GroupPlace

LEAVE_S: Final = 1.0

_log = structlog.stdlib.get_logger("ext_proc.workers")


class GroupJoin:
    """One ``PickerReports.Join`` stream, kept open.

    Args:
        channel: Channel to the control server.
        picker: This picker's id, as on ADS.
        standing: Returns how it stands, given whether it would place sequences.
        changed: Set when that may differ.
        take: Takes a list, and the addresses of all pickers.
        rng: Returns a number in [0, 1), for the jitter.
        call: Opens a stream; by default one of ``channel``.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        picker: str,
        standing: Callable[[bool], GroupPlace | None],
        changed: asyncio.Event,
        take: Callable[[Listed, Sequence[str]], None],
        rng: Callable[[], float],
        *,
        call: Callable[[], Any] | None = None,
    ) -> None:
        self._call: Callable[[], Any] = (
            report_pb2_grpc.PickerReportsStub(channel).Join if call is None else call
        )
        self._picker = picker
        self._standing = standing
        self._changed = changed
        self._take = take
        self._backoff = Backoff(rng)
        self._wake = asyncio.Event()
        self._places = False
        self._members: tuple[str, ...] = ()
        self._left = asyncio.Event()
        self._said = False
        """The log says that the stream is lost."""

    def wake(self) -> None:
        """Skip the current delay before the next attempt: the control server is reachable."""
        self._wake.set()

    def ready(self) -> None:
        """Place new sequences from now on."""
        self._places = True
        self._changed.set()

    async def leave(self) -> None:
        """Place no new sequences any more; wait until others do, at most ``LEAVE_S``."""
        self._places = False
        self._left.clear()
        self._changed.set()
        if self._picker in self._members and len(self._members) > 1:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), LEAVE_S)

    async def run(self) -> None:
        """Keep joined until cancelled."""
        while True:
            try:
                await self.join()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                self._say(error)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._backoff.delay_s())

    def _say(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else "it has ended"
            _log.warning("group_stream_lost", reason=reason)

    async def join(self) -> None:
        """Tell and take on one stream until it ends."""
        self._wake.clear()
        call = self._call()
        telling = asyncio.create_task(self._tell(call))
        try:
            while (told := await call.read()) is not grpc.aio.EOF:
                if told is None:  # grpc.aio: a message that cannot be decoded
                    raise asyncio.InvalidStateError
                self._backoff.reset()
                self._said = False
                members = tuple(told.members)[:MAX_MEMBERS]
                self._members = members
                self._take(Listed(told.number, told.life, members), told.addresses[:MAX_MEMBERS])
                if self._picker not in members:
                    self._left.set()
            status = await call.code()
            if status is not grpc.StatusCode.OK:
                raise grpc.aio.AioRpcError(
                    status, grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details()
                )
        finally:
            telling.cancel()
            with contextlib.suppress(
                asyncio.CancelledError, grpc.aio.AioRpcError, asyncio.InvalidStateError
            ):
                await telling
            call.cancel()

    async def _tell(self, call: Any) -> None:
        sent: GroupPlace | None = None
        while True:
            self._changed.clear()
            standing = self._standing(self._places)
            if standing is not None and standing != sent:
                await call.write(_message(self._picker, standing))
                sent = standing
            await self._changed.wait()


def _message(picker: str, standing: GroupPlace) -> report_pb2.GroupStanding:
    address, places, agrees, holds = standing
    return report_pb2.GroupStanding(
        picker_id=picker,
        address=address,
        places=places,
        agrees=agrees,
        holds=report_pb2.GroupList(number=holds.number, life=holds.life, members=holds.members),
    )
