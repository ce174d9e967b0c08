"""How much of a body a decision waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.exchange.events import DUPLEX, STREAMED
from ext_proc.requests.forms.grpc_infer import FRAME_HEADER_BYTES
from ext_proc.routing.values.request import GRPC_STREAM, MODEL_CALL, Form

if TYPE_CHECKING:
    from ext_proc.exchange.events import Head
    from ext_proc.routing.values.pool import Pool

FIRST_PART_BYTES: Final = 65_536
"""In duplex, most bytes for which a decision waits; at most one chunk more is held."""

_UNARY: Final = frozenset(
    {Form.GRPC_INFER, Form.HTTP_INFER, Form.GENERATE, Form.GENERATE_STREAM, Form.OPENAI}
)
"""Unary inference. A stream's body cannot be waited for: its client may wait for us."""

_GRPC: Final = frozenset({Form.GRPC_INFER, Form.GRPC_STREAM, Form.MODEL_CALL})


def body_tells_more(head: Head, form: Form, pool: Pool | None) -> bool:
    """Tell whether the decision waits for the body.

    Args:
        head: The request's head.
        form: Its form.
        pool: Its pool; ``None`` = not known yet.
    """
    sent = head.request_body
    if head.end_of_stream or sent is STREAMED:
        return False
    if form is GRPC_STREAM:
        # A stream's route announces duplex only where its pool chose to read the first message.
        return sent is DUPLEX
    if form is MODEL_CALL:
        return pool is None
    return form in _UNARY and (pool is None or pool.body != "none")


def enough(held: bytearray, form: Form) -> bool:
    """Tell whether a decision on a body in duplex has what it waits for.

    That is a gRPC call's first message, or `FIRST_PART_BYTES` of anything.
    """
    if len(held) >= FIRST_PART_BYTES:
        return True
    if form not in _GRPC or len(held) < FRAME_HEADER_BYTES:
        return False
    return len(held) >= FRAME_HEADER_BYTES + int.from_bytes(held[1:FRAME_HEADER_BYTES], "big")
