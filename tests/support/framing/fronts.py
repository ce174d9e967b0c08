"""Clients over HTTP/1 and HTTP/2 that send a case as it says, with its errors of framing."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Sequence

import hpack

from support.framing import frames
from support.framing.cases import CASE_HEADER, CHUNKED, Case
from support.framing.law import TRAILERS, Book, Outcome, Running

_GONE = (OSError, EOFError, ValueError, IndexError, asyncio.LimitOverrunError)
"""What a broken connection, or an answer that makes no sense, raises."""


class Http1Front:
    """A client's connection over HTTP/1.0 or 1.1, opened anew where it was closed.

    Args:
        address: Of Envoy, ``ip:port``.
        book: Where cases are entered.
    """

    def __init__(self, address: str, book: Book) -> None:
        host, _, port = address.rpartition(":")
        self._peer = host, int(port)
        self._book = book
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(self, cases: Sequence[Case]) -> None:
        """Send cases together and read their answers."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._peer, limit=2**20)
        assert self._reader is not None
        entered = [self._book.begin(case) for case in cases]
        sending = asyncio.create_task(self._send(entered, self._writer))
        keep = True
        try:
            for each in entered:
                outcome = Outcome(left=True)  # what follows on a closed connection was not read
                if keep:
                    outcome, keep = await self._outcome(each, self._reader, sending)
                self._book.end(each, outcome)
        finally:
            if not sending.done():
                sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, *_GONE):
                await sending
            if not keep or cases[-1].malformed:
                self.close()

    def close(self) -> None:
        """Close the connection."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _outcome(
        self, running: Running, reader: asyncio.StreamReader, sending: asyncio.Task[None]
    ) -> tuple[Outcome, bool]:
        """Return the outcome of a case, and whether the connection goes on."""
        if running.case.reset_after is not None:
            await sending
            assert self._writer is not None
            self._writer.transport.abort()
            return Outcome(left=True), False
        outcome = Outcome()
        try:
            keep = await self._answer(reader, outcome)
        except _GONE:
            keep = False
        return outcome, keep and running.client_done

    async def _answer(self, reader: asyncio.StreamReader, outcome: Outcome) -> bool:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
            status = int(head[0].split(" ")[1])
            if status >= 200:
                break
        pairs = (line.partition(":") for line in head[1:] if line)
        outcome.headers = {name.lower(): value.strip() for name, _, value in pairs}
        outcome.status = status
        if "transfer-encoding" in outcome.headers:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                outcome.body += await reader.readexactly(size)
                await reader.readexactly(2)
            await reader.readexactly(2)
        elif "content-length" in outcome.headers:
            left = int(outcome.headers["content-length"])
            while left:
                data = await reader.read(left)
                if not data:
                    return False
                outcome.body += data
                left -= len(data)
        else:
            outcome.body = await reader.read()
            outcome.whole = True
            return False
        outcome.whole = True
        return outcome.headers.get("connection") != "close"

    async def _send(self, entered: Sequence[Running], writer: asyncio.StreamWriter) -> None:
        beat = self._book.beat
        assert beat is not None
        waiting = b""
        for each in entered:
            case = each.case
            steps = _h1_steps(case)
            for step, data in enumerate(steps):
                if step in case.slow:
                    writer.write(waiting)
                    waiting = b""
                    await beat()
                waiting += data
                each.client_done = not any(steps[step + 1 :])
                if len(waiting) > 65_536 and case.reset_after is None:
                    writer.write(waiting)
                    waiting = b""
                    await writer.drain()
                if step == case.reset_after:
                    writer.write(waiting)
                    await beat()
                    return
        writer.write(waiting)
        await writer.drain()
        if entered[-1].case.framing.startswith("short"):
            await beat()
            if writer.can_write_eof():
                writer.write_eof()


def _h1_steps(case: Case) -> list[bytes]:
    """Return what the head, each part and the end of a case are."""
    framing, parts = case.framing, case.parts
    if framing == "pipelined":
        framing = "chunked" if case.number % 2 else "length"
    if framing.startswith("short"):
        parts = parts[:-1]
    head = _h1_head(case, framing)
    if framing not in CHUNKED:
        return [head, *parts, b""]
    made = [b"%x%s\r\n%s\r\n" % (len(part), b";a=b" * (len(part) % 2), part) for part in parts]
    trailers = b"".join(b"%s: %s\r\n" % _pair(each) for each in TRAILERS)
    ends = {
        "trailers": b"0\r\n" + trailers + b"\r\n",
        "bad-chunk": b"-1\r\n\r\n",
        "short-chunked": b"5\r\n",
    }
    return [head, *made, ends.get(framing, b"0\r\n\r\n")]


def _h1_head(case: Case, framing: str) -> bytes:
    lines = [f"POST {case.path} HTTP/{'1.0' if case.front == 'http/1.0' else '1.1'}"]
    lines += ["host: test", f"{CASE_HEADER}: {case.number}", "content-type: application/json"]
    if case.front == "http/1.0" and case.number % 2:
        lines.append("connection: keep-alive")
    if framing.startswith("expect"):
        lines.append("expect: 100-continue")
    if framing in CHUNKED:
        lines.append("transfer-encoding: chunked")
    length = len(case.body)
    lengths = {"plus-length": [f"+{length}"], "two-lengths": [f"{length}", f"{length + 1}"]}
    if framing not in CHUNKED or framing == "both":
        # Without a body there need not be a length.
        usual = [f"{length}"] if length or case.number % 4 or framing == "both" else []
        lines += [f"content-length: {value}" for value in lengths.get(framing, usual)]
    return "\r\n".join((*lines, "", "")).encode()


def _pair(pair: tuple[str, str]) -> tuple[bytes, bytes]:
    return pair[0].encode(), pair[1].encode()


class _Answer:
    """The answer on a stream, and the stream's window."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.window = size
        self.outcome = Outcome()
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(self, *, whole: bool = False) -> None:
        """Note that no more will come."""
        if not self.done.done():
            self.outcome.whole = whole
            self.done.set_result(None)


class Http2Front(asyncio.Protocol):
    """A client's connection over HTTP/2, opened anew where it was closed.

    Args:
        address: Of Envoy, ``ip:port``.
        book: Where cases are entered.
    """

    def __init__(self, address: str, book: Book) -> None:
        host, _, port = address.rpartition(":")
        self._peer = host, int(port)
        self._book = book
        self._transport: asyncio.Transport | None = None
        self._opening = asyncio.Lock()

    async def run(self, cases: Sequence[Case]) -> None:
        """Send a case as a stream and read its answer."""
        (case,) = cases
        async with self._opening:
            if self._transport is None or self._transport.is_closing():
                await self._open()
        running = self._book.begin(case)
        answer = _Answer(self._number, self._initial)
        self._number += 2
        self._answers[answer.number] = answer
        try:
            await self._send(running, answer)
            await answer.done
        finally:
            self._answers.pop(answer.number, None)
        self._book.end(running, answer.outcome)

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    async def _open(self) -> None:
        self._framed = frames.Framed()
        self._decoder = hpack.Decoder()
        self._answers: dict[int, _Answer] = {}
        self._number = 1
        self._initial = self._window = 65_535
        self._block: tuple[frames.Frame, bytearray] | None = None
        self._wider = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, *self._peer)
        self._transport.write(
            frames.PREFACE + frames.settings(window=2**20) + frames.window(0, 2**30)
        )

    # --- sending --------------------------------------------------------------------------------

    async def _send(self, running: Running, answer: _Answer) -> None:
        case, number = running.case, answer.number
        beat = self._book.beat
        assert beat is not None
        parts = case.parts
        last = len(parts) + 1
        for step in range(last + 1):
            if step in case.slow:
                await beat()
            if answer.done.done():
                break
            if step == 0:
                ends = not parts and self._ends_early(case)
                self._write(self._head(case, number, frames.END_STREAM if ends else 0))
            elif step < last:
                ends = step == last - 1 and self._ends_early(case)
                await self._data(case, answer, parts[step - 1], ends=ends)
            else:
                self._end(case, number)
            running.client_done = step == last or (step == last - 1 and self._ends_early(case))
            if step == case.reset_after:
                if step == last or case.number % 2:
                    await beat()
                answer.outcome.left = True
                code = frames.CANCEL if case.number % 3 else frames.NO_ERROR
                self._write(frames.reset(number, code))
                answer.end()
                return

    @staticmethod
    def _ends_early(case: Case) -> bool:
        """Return whether the last frame before the end says that it is the last."""
        return not (
            case.trailers
            or case.framing == "excess"
            or case.dress == "empty-end"
            or case.steps - 1 in case.slow
        )

    def _head(self, case: Case, number: int, flags: int) -> bytes:
        grpc = case.form != "infer"
        headers = [(":method", "POST"), (":scheme", "http"), (":authority", "test")]
        headers += [(":path", case.path), (CASE_HEADER, str(case.number))]
        headers.append(("content-type", "application/grpc" if grpc else "application/json"))
        if grpc:
            headers.append(("te", "trailers"))
            if case.named or case.form == "stream":
                headers.append(("tidegate-model", case.model))
        length = len(case.body)
        if case.framing == "lacking":
            headers.append(("content-length", str(length + 10)))
        elif case.framing not in {"no-length", "trailers-no-length"} and not grpc:
            headers.append(("content-length", str(length)))
        return frames.header_frames(number, headers, flags, split=case.dress == "split-headers")

    async def _data(self, case: Case, answer: _Answer, data: bytes, *, ends: bool) -> None:
        pad = 8 if case.dress == "padded" else 0
        at = 0
        while at < len(data) and not answer.done.done():
            room = min(frames.LARGEST, self._window, answer.window) - pad
            if room <= 0:
                self._wider.clear()
                await self._wider.wait()
                continue
            piece = data[at : at + room]
            at += len(piece)
            self._window -= len(piece) + pad
            answer.window -= len(piece) + pad
            flags = frames.END_STREAM if ends and at == len(data) else 0
            made = frames.padded if pad else _plain
            self._write(made(answer.number, piece, flags))

    def _end(self, case: Case, number: int) -> None:
        end, trailers = frames.END_STREAM, TRAILERS
        more = frames.frame(frames.DATA, end, number, b"GET / HTTP/1.1\r\n\r\n")
        if case.framing == "excess":
            self._write(more)
        elif case.framing == "open-trailers":
            self._write(frames.header_frames(number, trailers))
        elif case.framing == "after-trailers":
            self._write(frames.header_frames(number, trailers, end) + more)
        elif case.trailers:
            self._write(frames.header_frames(number, trailers, end))
        elif case.framing == "after-end":
            ended = b"" if self._ends_early(case) else frames.frame(frames.DATA, end, number)
            self._write(ended + more)
        elif not self._ends_early(case):
            self._write(frames.frame(frames.DATA, end, number))

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # --- receiving ------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take the frames apart."""
        for each in self._framed.feed(data):
            self._frame(each)

    def connection_lost(self, _: Exception | None) -> None:
        """End all answers."""
        self._transport = None
        for answer in self._answers.values():
            answer.end()
        self._wider.set()

    def _frame(self, each: frames.Frame) -> None:
        kind, number = each.kind, each.stream
        answer = self._answers.get(number)
        if kind in {frames.HEADERS, frames.CONTINUATION}:
            self._header_frame(each)
        elif kind == frames.DATA:
            self._answer_data(each, answer)
        elif kind in {frames.SETTINGS, frames.PING, frames.WINDOW}:
            self._control(each, answer)
        elif kind == frames.RESET and answer is not None:
            answer.end()
            self._wider.set()
        elif kind == frames.GOAWAY and self._transport is not None:
            self._transport.close()

    def _control(self, each: frames.Frame, answer: _Answer | None) -> None:
        kind, flags, number, payload = each
        if kind == frames.WINDOW:
            (more,) = struct.unpack(">I", payload)
            if number == 0:
                self._window += more
            elif answer is not None:
                answer.window += more
            self._wider.set()
        elif not flags & frames.ACK:
            if kind == frames.SETTINGS:
                self._settings(payload)
            else:
                self._write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _answer_data(self, each: frames.Frame, answer: _Answer | None) -> None:
        if each.payload:
            self._write(frames.window(each.stream, len(each.payload)))
        if answer is not None:
            answer.outcome.body += each.content
            if each.flags & frames.END_STREAM:
                self._ended(answer)

    def _header_frame(self, each: frames.Frame) -> None:
        if each.kind == frames.HEADERS:
            self._block = (each, bytearray(each.content))
        elif self._block is not None:
            self._block[1].extend(each.payload)
        if each.flags & frames.END_HEADERS and self._block is not None:
            (first, block), self._block = self._block, None
            self._headers(first, bytes(block))

    def _headers(self, first: frames.Frame, block: bytes) -> None:
        pairs = [(str(name), str(value)) for name, value in self._decoder.decode(block)]
        answer = self._answers.get(first.stream)
        if answer is None:
            return
        answer.outcome.headers |= dict(pairs)
        status = int(answer.outcome.headers[":status"])
        if status >= 200:
            answer.outcome.status = status
        if first.flags & frames.END_STREAM:
            self._ended(answer)

    def _ended(self, answer: _Answer) -> None:
        answer.end(whole=True)
        self._wider.set()

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            name, value = struct.unpack_from(">HI", payload, at)
            if name == frames.INITIAL_WINDOW:
                for answer in self._answers.values():
                    answer.window += value - self._initial
                self._initial = value
        self._write(frames.frame(frames.SETTINGS, frames.ACK, 0))
        self._wider.set()


def _plain(stream: int, data: bytes, flags: int) -> bytes:
    return frames.frame(frames.DATA, flags, stream, data)
