"""What is fuzzed: from one byte string to one call that must end in an answer or a ``BadRequest``.

The first bytes choose the form, whether the body is whole, its headers and the mode of the
exchange; the rest is the body. The same function serves the fuzzer (``run.py``), the corpus that
is replayed with the unit tests, and Hypothesis.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from ext_proc.exchange import Body, BodySending, Exchange, Head, Lost, Refuse
from ext_proc.exchange.messages import MAX_PASS_THROUGH_BYTES
from ext_proc.requests import BadRequest, prompt_blocks, read_body, read_head, token_blocks
from ext_proc.requests.blocks import MAX_BLOCKS
from ext_proc.requests.parsing.values import MAX_PROMPT_BYTES
from ext_proc.telemetry import orca
from ext_proc.telemetry.dialects import BadPage, read_all
from support.streams import llm, router, vision
from tidegate_api.names import LOAD_BIN_HEADER, LOAD_HEADER

if TYPE_CHECKING:
    from ext_proc.routing.values.request import Features

SERVICE = "/inference.GRPCInferenceService/"
PATHS = (
    SERVICE + "ModelInfer",
    SERVICE + "ModelStreamInfer",
    SERVICE + "ModelReady",
    "/v2/models/toy-llm/infer",
    "/v2/models/toy-llm/generate",
    "/v2/models/toy-llm/generate_stream",
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/generate",
)
CODINGS = ("", "gzip", "deflate", "br")
SENDING = (BodySending.NONE, BodySending.BUFFERED, BodySending.DUPLEX)
PICK_HEADER_BYTES = 4
MAX_CPU_S = 1.0
"""Far above what the bounds allow, as a fuzzer counts what it covers."""


def one_input(data: bytes) -> None:
    """Read ``data`` as the request that its first bytes choose, in every way the picker does."""
    if len(data) < PICK_HEADER_BYTES:
        return
    which, how, length, way = data[:PICK_HEADER_BYTES]
    body = data[PICK_HEADER_BYTES:]
    path = PATHS[which % len(PATHS)]
    coding = CODINGS[how // 2 % len(CODINGS)]
    headers = {"content-encoding": coding, "grpc-encoding": coding} if coding else {}
    if length:
        headers["inference-header-content-length"] = str(length - 1)
    started = time.thread_time()
    read(path, headers, body, complete=bool(how & 1))
    exchange(path, headers, body, way)
    assert time.thread_time() - started < MAX_CPU_S


class _Words:
    """A token per word, by its length."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:  # noqa: ARG002 - the interface
        """Return the lengths of the words."""
        return [len(word) for word in text.split()]


def read(path: str, headers: dict[str, str], body: bytes, *, complete: bool) -> Features | None:
    """Read a body; the result is always bounded."""
    try:
        features = read_body(read_head("POST", path, headers), headers, body, complete=complete)
    except BadRequest:
        return None
    assert len(features.prompt or b"") <= MAX_PROMPT_BYTES
    for name in (features.model, features.version, features.adapter, features.session):
        assert len(name or "") <= 256
    for block in prompt_blocks(features, 16):
        assert -(2**63) <= block < 2**63
    assert len(token_blocks(features, 16, 4, _Words()).hashes) <= MAX_BLOCKS
    return features


def exchange(path: str, headers: dict[str, str], body: bytes, way: int) -> None:
    """Send the body through an exchange, in chunks, and end it; nothing stays charged."""
    policy = "prefix-affinity"
    paths = frozenset(PATHS)
    everything = llm(default_for_paths=paths, paths=paths, policy=policy)
    request_router = router(everything, vision(policy=policy))
    protocol = "grpc" if path.startswith(SERVICE) else "http"
    sending = SENDING[way % 3]
    talk = Exchange(request_router)
    head = Head(
        "POST",
        path,
        headers,
        end_of_stream=False,
        cluster=f"llm/stable/{protocol}",
        route="unnamed/x" if way // 3 % 2 else "llm/x",
        request_body=sending,
    )
    actions = list(talk.on(head, 1.0, 1000.0))
    count = 1 if sending is not BodySending.DUPLEX else 1 + way // 6 % 4
    size = -(-len(body) // count) or 1
    for index in range(count):
        if any(isinstance(action, Refuse) for action in actions):
            break
        chunk = body[index * size : (index + 1) * size]
        last = index == count - 1
        actions += talk.on(Body(chunk, end_of_stream=last), 2.0, 1001.0)
    answered = [
        a.pass_through.chunk for a in actions if getattr(a, "pass_through", None) is not None
    ]
    assert all(len(chunk) <= MAX_PASS_THROUGH_BYTES for chunk in answered)
    refused = any(isinstance(action, Refuse) for action in actions)
    if sending is BodySending.DUPLEX and not refused:
        assert b"".join(answered) == body
    talk.on(Lost(clean=True), 3.0, 1002.0)
    assert len(request_router.ledger) == 0


def metrics_page(data: bytes) -> None:
    """Read ``data`` as a replica's metrics page."""
    with contextlib.suppress(BadPage):
        read_all(data.decode("utf-8", "replace"), 0.0)


def load_report(data: bytes) -> None:
    """Read ``data`` as the load report in a response's headers, in both of them."""
    text = data.decode("latin-1")
    for name in (LOAD_HEADER, LOAD_BIN_HEADER):
        with contextlib.suppress(orca.NoReportError):
            reading = orca.read([(name, text)], 0.0)
            assert 0.0 <= (reading.kv_used or 0.0) <= 1.0
            assert 0.0 <= (reading.queued or 0.0) < float("inf")
