"""Answers the control server's questions about single requests.

Rules:

1. One stream is kept open, beside that of the reports. The control server asks on it, one question
   after the other; each is answered once.
2. An answer has at most ``MAX_ANSWER_BYTES``; records that do not fit are left out, the oldest
   first.
3. A control server that does not know the call is asked again after the usual delays, which grow.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, Final

import grpc
import orjson
import structlog

from tidegate_api.fleet.v1 import report_pb2, report_pb2_grpc
from tidegate_common.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ext_proc.observability.records import RequestRecords

MAX_ANSWER_BYTES: Final = 256 * 1024

_log = structlog.stdlib.get_logger("ext_proc.control.inquiries")


class InquiryAnswerer:
    """One ``PickerReports.Answer`` stream, kept open.

    Args:
        channel: Channel to the control server.
        picker: This picker's id, as on ADS.
        records: What became of requests.
        rng: Returns a number in [0, 1), for the jitter.
        clock: Monotonic seconds.
        call: Opens a stream; by default one of ``channel``.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        picker: str,
        records: RequestRecords,
        rng: Callable[[], float],
        *,
        clock: Callable[[], float] = time.monotonic,
        call: Callable[[], Any] | None = None,
    ) -> None:
        self._call: Callable[[], Any] = (
            report_pb2_grpc.PickerReportsStub(channel).Answer if call is None else call
        )
        self._picker = picker
        self._records = records
        self._clock = clock
        self._backoff = Backoff(rng)
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Skip the current delay before the next attempt: the control server is reachable."""
        self._wake.set()

    async def run(self) -> None:
        """Answer until cancelled."""
        while True:
            try:
                await self.answer()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                _log.debug("inquiry_stream_lost", reason=type(error).__name__)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._backoff.delay_s())

    async def answer(self) -> None:
        """Answer on one stream until it ends."""
        self._wake.clear()
        call = self._call()
        try:
            await call.write(report_pb2.InquiryAnswer(picker_id=self._picker))
            while (inquiry := await call.read()) is not grpc.aio.EOF:
                self._backoff.reset()
                await call.write(self._answer_to(inquiry))
        finally:
            call.cancel()

    def _answer_to(self, inquiry: report_pb2.Inquiry) -> report_pb2.InquiryAnswer:
        now = self._clock()
        return report_pb2.InquiryAnswer(
            picker_id=self._picker,
            number=inquiry.number,
            records_json=list(fitting(self._records.find(inquiry.request, now))),
            since_seconds=self._records.since_s(now),
        )


def fitting(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the records as JSON, as many as fit an answer."""
    left = MAX_ANSWER_BYTES
    for record in records:
        data = orjson.dumps(record)
        left -= len(data)
        if left < 0:
            return
        yield data.decode()
