"""Bodies: whether a decision waits for one, how much suffices, and what is refused of any request.

Envoy 1.40 (and before) sends the picker the first part of a body, and holds what follows. If
nothing follows but the end, without a byte, Envoy forgets it, and the replica waits until
``timeouts.idle``. So it is with a chunked HTTP/1.1 body that crosses Envoy's buffer in the read
that also has the last chunk. Such a part is the whole body, and no length was declared: it is
refused with a reason rather than left to hang. A body that is not known to be whole goes on.

Source: ``source/extensions/filters/http/ext_proc/processor_state.cc``, where what is left is
injected only if it has bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from ext_proc.exchange.messages import DUPLEX, STREAMED, BodySending
from ext_proc.requests.forms.grpc_infer import FRAME_HEADER_BYTES
from ext_proc.requests.forms.http_infer import LENGTH_HEADER
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import GRPC_STREAM, MODEL_CALL, Form
from tidegate_api.pools import LEAST_PEEK_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.exchange.messages import Body, Head
    from ext_proc.routing.values.pool import Pool


FIRST_PART_BYTES: Final = 65_536
"""Maximum bytes for which a duplex decision waits; at most one more chunk is held."""

_UNARY: Final = frozenset(
    {
        Form.GRPC_INFER,
        Form.HTTP_INFER,
        Form.GENERATE,
        Form.GENERATE_STREAM,
        Form.OPENAI,
        Form.RESPONSES,
        Form.MESSAGES,
        Form.SCORE,
        Form.SGLANG,
    }
)
"""Unary inference. A stream's body must not be waited for: its client may wait for a response."""

_GRPC: Final = frozenset({Form.GRPC_INFER, Form.GRPC_STREAM, Form.MODEL_CALL})


_NONE: Final = BodySending.NONE  # see `machine`


def needs_body(head: Head, form: Form, pool: Pool | None, *, asks: bool = True) -> bool:
    """Return whether the decision waits for the body.

    Args:
        head: The request headers.
        form: Form of the request.
        pool: Pool of the request; ``None`` = not known yet.
        asks: The proxy sends a body that it did not announce if the reply requests it.
    """
    sent = head.request_body
    if head.end_of_stream or sent is STREAMED or (sent is _NONE and not asks):
        return False
    if form is GRPC_STREAM:
        # A stream's route announces duplex only if its pool chose to read the first message.
        return sent is DUPLEX
    if form is MODEL_CALL:
        return pool is None
    return form in _UNARY and (pool is None or pool.body != "none")


def has_first_part(held: bytearray, form: Form) -> bool:
    """Return whether the held part of a duplex body suffices for a decision.

    A gRPC call needs its first message; `FIRST_PART_BYTES` suffice in any case.
    """
    if len(held) >= FIRST_PART_BYTES:
        return True
    if form not in _GRPC or len(held) < FRAME_HEADER_BYTES:
        return False
    return len(held) >= FRAME_HEADER_BYTES + int.from_bytes(held[1:FRAME_HEADER_BYTES], "big")


TRAILERS: Final = Refusal(
    RefusalKind.TRAILERS,
    "trailers end the body of the request; send it without trailers"
    " (in HTTP/2: END_STREAM on the last DATA frame)",
)
LOST_END: Final = Refusal(
    RefusalKind.LENGTH_REQUIRED,
    "the proxy may lose the end of this body, which has no declared length and just exceeds its"
    " buffer; send it with a content-length",
)
CUT_BYTES: Final = LEAST_PEEK_BYTES
"""Envoy cuts no body that is as long or shorter."""
_MAX_BYTES: Final = 256 * 2**10
"""Longer parts have crossed the buffer before their last read."""


def loses_end(headers: Mapping[str, str], body: Body) -> bool:
    """Return whether a first part is all of a body without a declared length.

    One that Envoy's buffer holds was not cut: trailers end it.

    Args:
        headers: Headers of the request by lower-case name.
        body: What the proxy sent of its body.
    """
    if body.end_of_stream or "content-length" in headers:
        return False
    return LEAST_PEEK_BYTES < len(body.chunk) <= _MAX_BYTES and _is_whole(headers, body.chunk)


def _is_whole(headers: Mapping[str, str], chunk: bytes) -> bool:
    length = headers.get(LENGTH_HEADER, "")
    end = int(length) if length.isdecimal() and len(length) < len(str(_MAX_BYTES)) + 1 else 0
    text = chunk[:end] if end else chunk
    if not text.rstrip().endswith(b"}"):
        return False  # of a document that is cut, mostly
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return not end or end + _tensor_bytes(document) == len(chunk)


def _tensor_bytes(document: Any) -> int:
    """Return how many bytes of tensors follow a JSON part that declares them."""
    total = 0
    inputs = document.get("inputs") if isinstance(document, dict) else None
    for each in inputs if isinstance(inputs, list) else ():
        parameters = each.get("parameters") if isinstance(each, dict) else None
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        total += size if isinstance(size, int) else 0
    return total


def too_large(body: Body, pool: Pool) -> Refusal | None:
    """Enforce ``max_body_bytes`` of pools that read whole bodies; Envoy bounds first parts."""
    if pool.body != "full" or len(body.chunk) <= pool.max_body_bytes:
        return None
    return Refusal(
        RefusalKind.TOO_LARGE,
        f"the body has more than the {pool.max_body_bytes} bytes"
        f" that pool {pool.name!r} reads (routing.max_body)",
    )


def ended_by_trailers(body: Body) -> bool:
    """Return whether trailers end the body that Envoy was asked for, as far as it shows that.

    Envoy shows no trailers here, but cuts a body only above its bound, whose least value is known:
    a shorter part is the whole. A longer one may be either.
    """
    return not body.end_of_stream and len(body.chunk) <= CUT_BYTES
