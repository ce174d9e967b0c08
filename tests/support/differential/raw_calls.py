"""Raw HTTP calls: every path and method, in every form of HTTP, encoding and spelling."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from support.differential.answers import Answer, Call, Target
from support.differential.http import LENGTH, exchange, h2c
from support.sockets import chunks
from support.traffic import COUNTER, GENERATE, GENERATE_STREAM, VISION, counter_body, vision_body

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

JSON: Final = "content-type: application/json"
ABOUT: Final = "/v2/models/vision"
PROMPT: Final = {"text_input": "tides", "max_tokens": 2}


def sent(
    path: str,
    body: bytes | None = None,
    *lines: str,
    method: str = "",
    version: str = "1.1",
    counted: bool = True,
    edit: Callable[[Answer], Answer] = lambda answer: answer,
) -> Callable[[Target], Awaitable[Answer]]:
    """Return a call of one HTTP/1 request.

    Args:
        path: Path as it stands in the request line.
        body: Body; None is none.
        lines: Further lines of the head.
        method: ``POST`` where there is a body, else ``GET``, by default.
        version: Version of HTTP.
        counted: Whether Content-Length is sent with a body.
        edit: Removes what is never the same twice.
    """
    verb = method or ("GET" if body is None else "POST")
    top = [f"{verb} {path} HTTP/{version}", "host: test", *lines]
    if body is not None and counted:
        top.append(f"content-length: {len(body)}")
    data = "\r\n".join((*top, "", "")).encode() + (body or b"")

    async def ask(target: Target) -> Answer:
        return edit(await exchange(target.http, data, method=verb))

    return ask


def over_h2c(path: str, body: bytes, **headers: str) -> Callable[[Target], Awaitable[Answer]]:
    """Return a call over cleartext HTTP/2 to the gateway, over HTTP/1.1 to the replica."""
    fields = {"content-type": "application/json", **headers}

    async def ask(target: Target) -> Answer:
        if target.gateway:
            return await h2c(target.http, path, body, fields)
        lines = (f"{name}: {value}" for name, value in fields.items())
        return await sent(path, body, *lines)(target)

    return ask


def waiting(path: str, body: bytes) -> Callable[[Target], Awaitable[Answer]]:
    """Return a call whose body waits for ``100 Continue``."""
    top = f"POST {path} HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\n{JSON}\r\n"
    data = f"{top}content-length: {len(body)}\r\n\r\n".encode()

    async def ask(target: Target) -> Answer:
        return await exchange(target.http, data, body, expects=True)

    return ask


def twice(path: str) -> Callable[[Target], Awaitable[Answer]]:
    """Return a call that sends two requests at once on one connection and reads one answer."""
    data = f"GET {path} HTTP/1.1\r\nhost: test\r\n\r\n".encode()

    async def ask(target: Target) -> Answer:
        return await exchange(target.http, data + data, method="GET")

    return ask


def text(value: Any) -> bytes:
    """Return JSON."""
    return json.dumps(value).encode()


def binary(*outputs: dict[str, Any], **more: Any) -> tuple[bytes, str]:
    """Return an image with its tensor behind the JSON, and the header of the JSON's length."""
    blob = np.full((1, 3, 32, 32), 0.5, dtype=np.float32).tobytes()
    tensor = {
        "name": "image",
        "datatype": "FP32",
        "shape": [1, 3, 32, 32],
        "parameters": {"binary_data_size": len(blob)},
    }
    top = text({"inputs": [tensor], **({"outputs": list(outputs)} if outputs else {}), **more})
    return top + blob, f"{LENGTH}: {len(top)}"


def without_counts(answer: Answer) -> Answer:
    """Remove the numbers of a page of statistics."""

    def emptied(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: emptied(each) for key, each in value.items()}
        if isinstance(value, list):
            return [emptied(each) for each in value]
        return 0 if isinstance(value, int) else value

    answer = {**answer, "body": emptied(answer.get("body"))}
    answer.pop("header content-length", None)
    return answer


IMAGE: Final = text(vision_body())
BINARY, BINARY_LENGTH = binary()
BOTH, BOTH_LENGTH = binary({"name": "scores", "parameters": {"binary_data": True}})
COUNT: Final = text(counter_body(3, 900, sequence_start=True, sequence_end=True))
ASK: Final = text(PROMPT)
OCTETS: Final = "content-type: application/octet-stream"


def _model(name: str, **changes: Any) -> bytes:
    return text({**vision_body(), "id": name, **changes})


def _limited(**parameters: Any) -> bytes:
    return text({**vision_body(), "parameters": parameters})


QUESTIONS: Final = (
    Call("http: server metadata", sent("/v2")),
    Call("http: server metadata with a slash", sent("/v2/")),
    Call("http: server is live", sent("/v2/health/live")),
    Call("http: server is ready", sent("/v2/health/ready")),
    Call("http: metadata of a model", sent(ABOUT)),
    Call("http: metadata of a version", sent(ABOUT + "/versions/1")),
    Call("http: metadata of a decoupled model", sent("/v2/models/toy-llm")),
    Call("http: model is ready", sent(ABOUT + "/ready")),
    Call("http: version is ready", sent(ABOUT + "/versions/1/ready")),
    Call("http: config of a model", sent(ABOUT + "/config")),
    Call("http: config of a version", sent(ABOUT + "/versions/1/config")),
    Call("http: config of a sequence model", sent("/v2/models/counter/config")),
    Call("http: statistics of a model", sent(ABOUT + "/stats", edit=without_counts)),
    Call("http: statistics of a version", sent(ABOUT + "/versions/1/stats", edit=without_counts)),
    Call("http: statistics of all models", sent("/v2/models/stats", edit=without_counts)),
    Call("http: metadata of an unknown model", sent("/v2/models/missing")),
    Call("http: config of an unknown model", sent("/v2/models/missing/config")),
    Call("http: readiness of an unknown model", sent("/v2/models/missing/ready")),
    Call("http: statistics of an unknown model", sent("/v2/models/missing/stats")),
    Call("http: metadata of an unknown version", sent(ABOUT + "/versions/9")),
    Call("http: config of an unknown version", sent(ABOUT + "/versions/9/config")),
    Call("http: readiness of an unknown version", sent(ABOUT + "/versions/9/ready")),
    Call("http: version that is no number", sent(ABOUT + "/versions/x/ready")),
    Call("http: HEAD of server metadata", sent("/v2", method="HEAD")),
    Call("http: HEAD of readiness", sent("/v2/health/ready", method="HEAD")),
    Call("http: HEAD of liveness", sent("/v2/health/live", method="HEAD")),
    Call("http: HEAD of a model", sent(ABOUT, method="HEAD")),
    Call("http: HEAD of an inference", sent(VISION, method="HEAD")),
    Call("http: OPTIONS of an inference", sent(VISION, method="OPTIONS")),
    Call("http: OPTIONS of the server", sent("*", method="OPTIONS")),
    Call(
        "http: preflight of a browser",
        sent(
            VISION,
            None,
            "origin: http://page.test",
            "access-control-request-method: POST",
            method="OPTIONS",
        ),
    ),
    Call("http: GET of an inference", sent(VISION)),
    Call("http: GET of a generation", sent(GENERATE)),
    Call("http: PUT of an inference", sent(VISION, IMAGE, JSON, method="PUT")),
    Call("http: DELETE of a model", sent(ABOUT, method="DELETE")),
    Call("http: PATCH of a model", sent(ABOUT, b"{}", JSON, method="PATCH")),
    Call("http: POST of metadata", sent(ABOUT, b"{}", JSON)),
    Call("http: POST of readiness", sent(ABOUT + "/ready", b"{}", JSON)),
    Call("http: unknown path", sent("/nothing")),
    Call("http: root", sent("/")),
    Call("http: unknown verb of a model", sent(ABOUT + "/explain", b"{}", JSON)),
    Call("http: metrics", sent("/metrics")),
)

ONE_REPLICA: Final = (
    Call("http: repository index", sent("/v2/repository/index", b"{}", JSON)),
    Call("http: index of the ready", sent("/v2/repository/index", b'{"ready": true}', JSON)),
    Call("http: load a model", sent("/v2/repository/models/missing/load", b"{}", JSON)),
    Call("http: unload a model", sent("/v2/repository/models/missing/unload", b"{}", JSON)),
    Call("http: trace settings", sent("/v2/trace/setting")),
    Call("http: trace settings of a model", sent(ABOUT + "/trace/setting")),
    Call("http: log settings", sent("/v2/logging")),
    Call("http: shared memory", sent("/v2/systemsharedmemory/status")),
    Call("http: CUDA shared memory", sent("/v2/cudasharedmemory/status")),
    Call(
        "http: register shared memory",
        sent("/v2/systemsharedmemory/region/a/register", text({"key": "/none"}), JSON),
    ),
    Call("http: unregister memory", sent("/v2/systemsharedmemory/region/a/unregister", b"", JSON)),
)

CHANGES: Final = (
    Call("change: load malformed", sent("/v2/repository/models/vision/load", b"{", JSON)),
    Call("change: load of an odd name", sent("/v2/repository/models/a%20b/load", b"{}", JSON)),
    Call("change: unload an odd name", sent("/v2/repository/models/a%20b/unload", b"{}", JSON)),
    Call("change: unload malformed", sent("/v2/repository/models/missing/unload", b"[", JSON)),
    Call("change: trace of an unknown model", sent("/v2/models/missing/trace/setting")),
    Call("change: unknown trace setting", sent("/v2/trace/setting", b'{"x": "y"}', JSON)),
    Call("change: wrong trace level", sent("/v2/trace/setting", b'{"trace_level": ["X"]}', JSON)),
    Call("change: trace malformed", sent("/v2/trace/setting", b"{", JSON)),
    Call("change: unknown log setting", sent("/v2/logging", b'{"x": true}', JSON)),
    Call("change: wrong log level", sent("/v2/logging", b'{"log_verbose_level": "x"}', JSON)),
    Call("change: log format", sent("/v2/logging", b'{"log_format": "default"}', JSON)),
)
"""Calls of operators beside those of ``ONE_REPLICA``, most of them wrong."""

INFERENCES: Final = (
    Call("http: infer", sent(VISION, IMAGE, JSON)),
    Call("http: infer with a version", sent(ABOUT + "/versions/1/infer", IMAGE, JSON)),
    Call("http: infer with a query", sent(VISION + "?a=b", IMAGE, JSON)),
    Call("http: infer without a content type", sent(VISION, IMAGE)),
    Call("http: infer as text", sent(VISION, IMAGE, "content-type: text/plain")),
    Call("http: infer as a form", sent(VISION, IMAGE, "content-type: multipart/form-data")),
    Call("http: infer with accept", sent(VISION, IMAGE, JSON, "accept: application/json")),
    Call("http: infer with an id", sent(VISION, _model("an id of mine"), JSON)),
    Call("http: infer with a request id", sent(VISION, IMAGE, JSON, "x-request-id: 7")),
    Call("http: infer one output", sent(VISION, _model("", outputs=[{"name": "scores"}]), JSON)),
    Call("http: infer no output", sent(VISION, _model("", outputs=[]), JSON)),
    Call(
        "http: infer with classes",
        sent(
            VISION,
            _model("", outputs=[{"name": "scores", "parameters": {"classification": 2}}]),
            JSON,
        ),
    ),
    Call("http: infer with a priority", sent(VISION, _limited(priority=1), JSON)),
    Call("http: infer with a timeout", sent(VISION, _limited(timeout=5_000_000), JSON)),
    Call("http: infer with a short timeout", sent(VISION, _limited(timeout=1), JSON)),
    Call("http: infer with parameters", sent(VISION, _limited(a="b", c=1, d=True, e=0.5), JSON)),
    Call("http: infer with a reserved one", sent(VISION, _limited(triton_a="b"), JSON)),
    Call("http: infer binary", sent(VISION, BINARY, OCTETS, BINARY_LENGTH)),
    Call("http: infer binary as JSON", sent(VISION, BINARY, JSON, BINARY_LENGTH)),
    Call("http: infer binary in and out", sent(VISION, BOTH, OCTETS, BOTH_LENGTH)),
    Call("http: infer all outputs binary", sent(VISION, _limited(binary_data_output=True), JSON)),
    Call(
        "http: infer raw tensor",
        sent(VISION, BINARY[-12288:], OCTETS, f"{LENGTH}: 0"),
    ),
    Call("http: infer gzip", sent(VISION, gzip.compress(IMAGE), JSON, "content-encoding: gzip")),
    Call(
        "http: infer deflate",
        sent(VISION, zlib.compress(IMAGE), JSON, "content-encoding: deflate"),
    ),
    Call(
        "http: infer binary gzip",
        sent(VISION, gzip.compress(BINARY), OCTETS, BINARY_LENGTH, "content-encoding: gzip"),
    ),
    Call("http: infer identity", sent(VISION, IMAGE, JSON, "content-encoding: identity")),
    Call("http: infer unknown coding", sent(VISION, IMAGE, JSON, "content-encoding: br")),
    Call("http: infer false gzip", sent(VISION, IMAGE, JSON, "content-encoding: gzip")),
    Call("http: answer in gzip", sent(VISION, IMAGE, JSON, "accept-encoding: gzip")),
    Call("http: sequence", sent(COUNTER, COUNT, JSON)),
    Call(
        "http: sequence of texts",
        sent(COUNTER, text(counter_body(3, "a", sequence_start=True, sequence_end=True)), JSON),
    ),
    Call("http: sequence without a start", sent(COUNTER, text(counter_body(3, 901)), JSON)),
    Call(
        "http: infer of a decoupled model",
        sent(
            "/v2/models/toy-llm/infer",
            text(
                {
                    "inputs": [
                        {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
                    ]
                }
            ),
            JSON,
        ),
    ),
    Call("http: generate", sent(GENERATE, ASK, JSON)),
    Call("http: generate of a version", sent("/v2/models/toy-llm/versions/1/generate", ASK, JSON)),
    Call("http: generate with an id", sent(GENERATE, text({**PROMPT, "id": "mine"}), JSON)),
    Call(
        "http: generate with parameters",
        sent(GENERATE, text({"text_input": "tides", "parameters": {"max_tokens": 3}}), JSON),
    ),
    Call("http: generate of a stream", sent(GENERATE, text({**PROMPT, "stream": True}), JSON)),
    Call("http: generate nothing", sent(GENERATE, b"", JSON)),
    Call("http: generate of a sync model", sent(ABOUT + "/generate", text({"image": 1}), JSON)),
    Call("http: generate gzip", sent(GENERATE, gzip.compress(ASK), "content-encoding: gzip")),
    Call("http: generate malformed", sent(GENERATE, b"{", JSON)),
    Call("http: generate an array", sent(GENERATE, b"[1]", JSON)),
    Call("http: generate of a number", sent(GENERATE, text({"text_input": 5}), JSON)),
    Call("http: generate of an unknown input", sent(GENERATE, text({**PROMPT, "x": [1]}), JSON)),
    Call("http: generate_stream", sent(GENERATE_STREAM, text({**PROMPT, "stream": True}), JSON)),
    Call("http: generate_stream of one", sent(GENERATE_STREAM, ASK, JSON)),
    Call("http: generate_stream malformed", sent(GENERATE_STREAM, b"{", JSON)),
    Call("http: generate_stream empty", sent(GENERATE_STREAM, b"", JSON)),
)

SPELLINGS: Final = (
    Call("spelling: slash behind a model", sent(ABOUT + "/")),
    Call("spelling: slash behind readiness", sent("/v2/health/ready/")),
    Call("spelling: slash behind config", sent(ABOUT + "/config/")),
    Call("spelling: slash behind infer", sent(VISION + "/", IMAGE, JSON)),
    Call("spelling: two slashes", sent("/v2//models/vision")),
    Call("spelling: two slashes of infer", sent("/v2/models//vision/infer", IMAGE, JSON)),
    Call("spelling: escaped letter", sent("/v2/models/%76ision")),
    Call("spelling: escaped letter of infer", sent("/v2/models/%76ision/infer", IMAGE, JSON)),
    Call("spelling: escaped dash", sent("/v2/models/toy%2Dllm/config")),
    Call("spelling: escaped slash", sent("/v2/models%2Fvision")),
    Call("spelling: escaped space", sent("/v2/models/vision%20/config")),
    Call("spelling: dots", sent("/v2/models/x/../vision")),
    Call("spelling: one dot", sent("/v2/./models/vision")),
    Call("spelling: capitals", sent("/V2/models/vision")),
    Call("spelling: capitals of a model", sent("/v2/models/Vision")),
    Call("spelling: absolute", sent("http://test/v2/models/vision")),
    Call("spelling: query", sent(ABOUT + "?verbose=1")),
    Call("spelling: fragment", sent(ABOUT + "#a")),
    Call("spelling: parameter", sent(ABOUT + ";a=b")),
    Call("spelling: other scripts", sent("/v2/models/%C3%A9t%C3%A9/config")),
    Call("spelling: invalid escape", sent("/v2/models/vision%zz/config")),
    Call("spelling: zero byte", sent("/v2/models/vision%00/config")),
)

FORMS: Final = (
    Call("HTTP/1.0: metadata", sent(ABOUT, version="1.0")),
    Call("HTTP/1.0: infer", sent(VISION, IMAGE, JSON, version="1.0")),
    Call("HTTP/1.0: generate", sent(GENERATE, ASK, JSON, version="1.0")),
    Call("HTTP/1.0: stream", sent(GENERATE_STREAM, ASK, JSON, version="1.0")),
    Call("HTTP/1.0: keep-alive", sent(ABOUT, None, "connection: keep-alive", version="1.0")),
    Call("HTTP/1.1: close", sent(ABOUT, None, "connection: close")),
    Call("HTTP/1.1: keep-alive", sent(ABOUT, None, "connection: keep-alive")),
    Call("HTTP/1.1: pipelined", twice(ABOUT)),
    Call("HTTP/1.1: body of a GET", sent(ABOUT, b"{}", JSON, method="GET")),
    Call("HTTP/1.1: expect", waiting(VISION, IMAGE)),
    Call("HTTP/1.1: expect of generate", waiting(GENERATE, ASK)),
    Call(
        "HTTP/1.1: upgrade to h2c",
        sent(
            ABOUT,
            None,
            "connection: upgrade, http2-settings",
            "upgrade: h2c",
            "http2-settings: AAMAAABkAARAAAAAAAIAAAAA",
        ),
    ),
    Call(
        "HTTP/1.1: WebSocket",
        sent(
            ABOUT,
            None,
            "connection: upgrade",
            "upgrade: websocket",
            "sec-websocket-version: 13",
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
    ),
    *(
        Call(
            f"chunked: {name}",
            sent(path, chunks(pieces), *lines, "transfer-encoding: chunked", counted=False),
        )
        for name, path, pieces, lines in (
            ("infer", VISION, [IMAGE], (JSON,)),
            ("infer in pieces", VISION, [IMAGE[:10], IMAGE[10:2000], IMAGE[2000:]], (JSON,)),
            ("infer binary", VISION, [BINARY[:100], BINARY[100:]], (OCTETS, BINARY_LENGTH)),
            ("generate", GENERATE, [ASK[:5], ASK[5:]], (JSON,)),
            ("generate_stream", GENERATE_STREAM, [ASK], (JSON,)),
            ("sequence", COUNTER, [COUNT], (JSON,)),
            ("empty", VISION, [], (JSON,)),
        )
    ),
    Call("h2c: infer", over_h2c(VISION, IMAGE)),
    Call("h2c: infer binary", over_h2c(VISION, BOTH, **{LENGTH: BOTH_LENGTH.partition(": ")[2]})),
    Call("h2c: generate", over_h2c(GENERATE, ASK)),
    Call("h2c: generate_stream", over_h2c(GENERATE_STREAM, ASK)),
    Call("h2c: unknown input", over_h2c(VISION, text({"inputs": []}))),
    Call("h2c: malformed", over_h2c(VISION, b"{")),
)
