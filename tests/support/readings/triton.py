"""A real Triton, asked by many requests at a time, and what it read of each."""

from __future__ import annotations

import base64
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import aiohttp
import ngh2
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2, service_pb2

from support.readings.cases import MODEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from support.readings.cases import Case

FOLDER: Final = Path(__file__).parents[1] / "models" / MODEL
VERSIONS: Final = ("1", "2")
AT_ONCE: Final = 16
"""Requests that Triton has at a time, over as many connections or in as many streams."""
TIMEOUT_S: Final = 10.0
_OK: Final = 200
_LAST_CHUNK: Final = b"0\r\n\r\n"
_DEAD_BACKEND: Final = "not healthy"
"""Of Triton's answer where the process that runs the model is gone."""


class Tensor(NamedTuple):
    """An input as the model got it."""

    name: str
    shape: tuple[int, ...]
    size: int
    """Bytes of its data."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as Triton read it."""

    model: str
    version: str
    id: bytes
    sequence: int | str
    """0 or empty = none."""
    start: bool
    end: bool
    timeout_us: int
    inputs: tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """Triton's answer."""

    seen: Seen | None
    """``None`` = it rejected the request."""
    status: int
    """Of HTTP or gRPC."""
    text: str

    @property
    def accepted(self) -> bool:
        """Whether the request reached the model."""
        return self.seen is not None

    @property
    def died(self) -> bool:
        """Whether the server, or the process of the model, is gone."""
        return self.status < 0 or _DEAD_BACKEND in self.text


GONE: Final = Answer(None, -1, "the connection ended without an answer")
DIED: Final = Answer(None, -2, "the server or the process of the model ended")
CLOSED: Final = Answer(None, 0, "the connection ended without an answer, but the server lives")


async def load_model(address: str) -> None:
    """Load the model in all its versions into a running server with explicit control."""
    config = text_format.Parse(
        (FOLDER / "config.pbtxt").read_text(), model_config_pb2.ModelConfig(name=MODEL)
    )
    parameters = {"config": json_format.MessageToJson(config)} | {
        f"file:{version}/model.py": base64.b64encode(
            (FOLDER / version / "model.py").read_bytes()
        ).decode()
        for version in VERSIONS
    }
    await _control(address, "load", {"parameters": parameters})


async def unload_model(address: str) -> None:
    """Unload the model."""
    await _control(address, "unload", {})


async def _control(address: str, verb: str, body: dict[str, Any]) -> None:
    url = f"http://{address}/v2/repository/models/{MODEL}/{verb}"
    async with aiohttp.ClientSession() as http, http.post(url, json=body) as answer:
        assert answer.status == _OK, await answer.text()


class Asking:
    """Sends requests to one Triton, ``AT_ONCE`` at a time; a context manager.

    Args:
        http: Address of its HTTP port.
        grpc: Address of its gRPC port.
    """

    def __init__(self, http: str, grpc: str) -> None:
        self._http = http
        self._grpc = grpc
        self._connections = [_Http(http) for _ in range(AT_ONCE)]
        self._streams = _Grpc(grpc)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; they are opened again where needed."""
        for connection in self._connections:
            connection.close()
        self._streams.close()

    def ask(self, cases: Sequence[Case]) -> list[Answer]:
        """Send all requests; return the answers in their order."""
        answers: dict[int, Answer] = {}
        for wanted in (False, True):
            of_kind = [index for index, case in enumerate(cases) if case.is_grpc is wanted]
            for first in range(0, len(of_kind), AT_ONCE):
                group = of_kind[first : first + AT_ONCE]
                asked = [cases[index] for index in group]
                found = self._streams.ask(asked) if wanted else self._over_http(asked)
                answers.update(zip(group, found, strict=True))
        return [answers[index] for index in range(len(cases))]

    def _over_http(self, cases: list[Case]) -> list[Answer]:
        used = self._connections[: len(cases)]
        for connection, case in zip(used, cases, strict=True):
            connection.send(case)
        return [connection.receive() for connection in used]


class _Http:
    """One connection over HTTP/1.1, kept alive."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._socket: socket.socket | None = None
        self._broken = False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def send(self, case: Case) -> None:
        lines = [f"POST {case.path} HTTP/1.1", "host: triton"]
        lines += [f"{name}: {value}" for name, value in case.headers]
        body = case.body
        if case.chunked:
            lines.append("transfer-encoding: chunked")
            half = len(body) // 2
            parts = [part for part in (body[:half], body[half:]) if part]
            body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
        else:
            lines.append(f"content-length: {len(body)}")
        message = "\r\n".join((*lines, "", "")).encode("latin-1") + body
        self._broken = False
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address, TIMEOUT_S)
            self._socket.sendall(message)
        except OSError:
            self._broken = True

    def receive(self) -> Answer:
        try:
            return GONE if self._broken else self._receive()
        except OSError:
            self.close()
            return GONE

    def _receive(self) -> Answer:
        assert self._socket is not None
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        head = data[:end].decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if ": " in line)
        body = data[end + 4 :]
        if "content-length" in headers:
            while len(body) < int(headers["content-length"]):
                body += self._more()
        else:  # of `generate`
            while not body.endswith(_LAST_CHUNK):
                body += self._more()
            body = _joined(body)
        if headers.get("connection") == "close":
            self.close()
        return _over_http(int(head[0].split(" ", 2)[1]), body)

    def _more(self) -> bytes:
        assert self._socket is not None
        data = self._socket.recv(65536)
        if not data:
            raise ConnectionResetError
        return data


def _joined(chunks: bytes) -> bytes:
    """Return what the chunks of a body hold."""
    made = b""
    while not chunks.startswith(b"0\r\n"):
        size, _, rest = chunks.partition(b"\r\n")
        made += rest[: int(size, 16)]
        chunks = rest[int(size, 16) + 2 :]
    return made


def _over_http(status: int, body: bytes) -> Answer:
    if status != _OK:
        return Answer(None, status, body.decode("utf-8", "replace"))
    # Triton's own JSON repeats the request's bytes, which may be no UTF-8.
    told = json.loads(body.decode("utf-8", "surrogateescape"))
    said = told["outputs"][0]["data"][0] if "outputs" in told else told["said"]
    return Answer(_seen(told["model_name"], told["model_version"], said), status, "")


def _seen(model: str, version: str, text: str | bytes) -> Seen:
    told = json.loads(text)
    flags = told["flags"]
    return Seen(
        model,
        version,
        bytes.fromhex(told["id"]),
        told["sequence"],
        bool(flags & 1),
        bool(flags & 2),
        told["timeout"],
        tuple(Tensor(name, tuple(shape), size) for name, shape, size in told["inputs"]),
    )


_UNTOLD: Final = b"2"
"""Status of an answer whose own could not be read."""
_GRPC_HEADERS: Final = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":authority", b"triton"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


class _Grpc:
    """One connection over HTTP/2 with several streams."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._socket: socket.socket | None = None
        self._h2 = ngh2.Connection(ngh2.Role.CLIENT)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def ask(self, cases: list[Case]) -> list[Answer]:
        try:
            return self._ask(cases)
        except OSError:
            self.close()
            return [GONE] * len(cases)

    def _ask(self, cases: list[Case]) -> list[Answer]:
        if self._socket is None:
            self._socket = socket.create_connection(self._address, TIMEOUT_S)
            self._h2 = ngh2.Connection(ngh2.Role.CLIENT)
            self._h2.initiate_connection()
        bodies: dict[int, bytearray] = {}
        trailers: dict[int, dict[bytes, bytes]] = {}
        order = []
        for case in cases:
            extra = tuple((name.encode(), value.encode("latin-1")) for name, value in case.headers)
            path = (b":path", case.path.encode())
            number = self._h2.send_request((*_GRPC_HEADERS[:3], path, *_GRPC_HEADERS[3:], *extra))
            self._h2.send_data(number, case.body, end_stream=True)
            bodies[number], trailers[number] = bytearray(), {}
            order.append(number)
        open_ = set(order)
        while True:
            self._socket.sendall(self._h2.data_to_send())
            for event in self._h2.events():
                if isinstance(event, ngh2.DataReceived):
                    bodies[event.stream_id] += event.data
                elif isinstance(event, ngh2.TrailersReceived | ngh2.ResponseReceived):
                    trailers[event.stream_id].update(event.headers)
                elif isinstance(event, ngh2.StreamClosed):
                    open_.discard(event.stream_id)
            if not open_:
                break
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError
            self._h2.receive_data(data)
        self._socket.sendall(self._h2.data_to_send())
        return [_over_grpc(trailers[number], bytes(bodies[number])) for number in order]


def _over_grpc(trailers: dict[bytes, bytes], body: bytes) -> Answer:
    # A message with a space at its end is no valid header: libnghttp2 resets the stream.
    status = int(trailers.get(b"grpc-status", _UNTOLD))
    if status:
        text = trailers.get(b"grpc-message", b"").decode("utf-8", "replace")
        return Answer(None, status, text)
    message = service_pb2.ModelInferResponse.FromString(body[5:])
    said = message.raw_output_contents[0][4:]
    return Answer(_seen(message.model_name, message.model_version, said), 0, "")
