"""How much of a body a decision waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.exchange.events import DUPLEX, STREAMED, BodySending
from ext_proc.requests.forms.grpc_infer import FRAME_HEADER_BYTES
from ext_proc.routing.values.request import GRPC_STREAM, MODEL_CALL, Form

if TYPE_CHECKING:
    from ext_proc.exchange.events import Head
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


_NONE: Final = BodySending.NONE  # see `state`


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
