"""Questions to pickers: what became of a single request.

Rules:

1. A picker keeps a stream open on which it is asked; of two streams of a picker the newer counts.
2. A question goes to all pickers at once. Those that have not answered when the time is over are
   named, and so are those that reported but keep no such stream.
3. An answer that breaks a bound, or answers no question, ends its stream with INVALID_ARGUMENT.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import grpc

from tidegate_api.fleet.v1 import report_pb2
from xds_server.applications.traffic.inquiry import FoundRequest, ToldRequest, TooManyInquiries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ASK_S: Final = 2.0
"""Seconds that pickers have to answer."""
MAX_ASKED: Final = 16
"""Most questions that wait for answers at a time."""
MAX_PICKERS: Final = 1024
MAX_RECORDS: Final = 16
MAX_BYTES: Final = 512 * 1024
MAX_ID_CHARS: Final = 256


class _Stream:
    def __init__(self, context: Any) -> None:
        self.context = context
        self.waiting: dict[int, asyncio.Future[ToldRequest]] = {}


class Inquiries:
    """The pickers' streams; see the module's rules.

    Args:
        not_named: Returns why a call's peer may not speak as a picker, by its context and the
            picker's id; ``None`` = it may.
    """

    def __init__(self, not_named: Callable[[Any, str], str | None] = lambda *_: None) -> None:
        self._not_named = not_named
        self._streams: dict[str, _Stream] = {}
        self._numbers = itertools.count(1)
        self._asking = 0

    async def serve(self, answers: Any, context: Any) -> None:
        """Receive one picker's answers until its stream ends (gRPC)."""
        stream, picker = _Stream(context), ""
        try:
            async for answer in answers:
                problem = _problem(picker, answer)
                if not picker and not problem:
                    if reason := self._not_named(context, answer.picker_id):
                        await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
                    problem = self._join(answer, stream)
                    picker = "" if problem else answer.picker_id
                elif not problem:
                    waiting = stream.waiting.pop(answer.number, None)
                    if waiting is not None and not waiting.done():
                        records = tuple(answer.records_json)
                        waiting.set_result(ToldRequest(picker, records, answer.since_seconds))
                if problem:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        finally:
            if self._streams.get(picker) is stream:
                del self._streams[picker]
            for waiting in stream.waiting.values():
                waiting.cancel()

    def _join(self, answer: report_pb2.InquiryAnswer, stream: _Stream) -> str:
        if answer.number:
            return "the first message of a stream answers nothing; its number must be 0"
        if answer.picker_id not in self._streams and len(self._streams) >= MAX_PICKERS:
            return f"{MAX_PICKERS} pickers are connected already"
        self._streams[answer.picker_id] = stream
        return ""

    async def ask(
        self, request: str, reporting: Sequence[str] = (), within_s: float = ASK_S
    ) -> FoundRequest:
        """Ask all pickers for a request.

        Args:
            request: Its id, or the id of its trace.
            reporting: Pickers that report; those without a stream are silent.
            within_s: Seconds that they have to answer.

        Raises:
            TooManyInquiries: ``MAX_ASKED`` questions wait for answers.
        """
        if self._asking >= MAX_ASKED:
            raise TooManyInquiries(f"{MAX_ASKED} questions to the pickers wait for answers")
        self._asking += 1
        try:
            asked = {
                picker: asyncio.ensure_future(self._ask(stream, request))
                for picker, stream in sorted(self._streams.items())
            }
            if asked:
                await asyncio.wait(asked.values(), timeout=within_s)
        finally:
            self._asking -= 1
        told = []
        silent = [picker for picker in reporting if picker not in asked]
        for picker, task in asked.items():
            if task.done() and not task.cancelled() and task.exception() is None:
                told.append(task.result())
            else:
                task.cancel()
                silent.append(picker)
        return FoundRequest(tuple(told), tuple(sorted(silent)))

    async def _ask(self, stream: _Stream, request: str) -> ToldRequest:
        number = next(self._numbers)
        waiting: asyncio.Future[ToldRequest] = asyncio.get_running_loop().create_future()
        stream.waiting[number] = waiting
        try:
            await stream.context.write(report_pb2.Inquiry(number=number, request=request))
            return await waiting
        finally:
            stream.waiting.pop(number, None)


def _problem(picker: str, answer: report_pb2.InquiryAnswer) -> str:
    name, records = answer.picker_id, answer.records_json
    if not 0 < len(name) <= MAX_ID_CHARS or not name.isprintable() or picker not in {"", name}:
        return f"picker_id must have 1 to {MAX_ID_CHARS} characters, the same in each message"
    if len(records) > MAX_RECORDS or sum(map(len, records)) > MAX_BYTES:
        return f"more than {MAX_RECORDS} records in an answer, or {MAX_BYTES} bytes of them"
    if not isfinite(answer.since_seconds) or answer.since_seconds < 0:
        return "since_seconds must be finite and at least 0"
    try:
        objects = all(isinstance(json.loads(each), dict) for each in records)
    except (ValueError, RecursionError):
        objects = False
    return "" if objects else "a record is not a JSON object"
