"""Raw gRPC calls, and the facets of their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import grpc
from google.protobuf.json_format import MessageToDict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.differential.answers import Answer

TIMEOUT_S: Final = 20.0
KSERVE: Final = "/inference.GRPCInferenceService/"
_LEFT_OUT: Final = ("date",)


async def call(
    address: str,
    method: str,
    messages: Sequence[bytes],
    reply: Callable[[bytes], Any] | None = None,
    *,
    metadata: Sequence[tuple[str, str]] = (),
    compression: grpc.Compression | None = None,
    deadline_s: float = TIMEOUT_S,
    most: int = 100,
) -> Answer:
    """Call a method with serialized messages and return the answer's facets.

    Args:
        address: ``ip:port`` of the server.
        method: Full name of the method, with slashes.
        messages: What is sent.
        reply: Parser of a reply; the bytes count without it.
        metadata: Metadata of the call.
        compression: Compression of the messages.
        deadline_s: Deadline of the call, seconds.
        most: The call is cancelled after this number of replies.
    """
    replies: list[Any] = []
    async with grpc.aio.insecure_channel(address) as channel:
        # A single message is sent at once: of a stream that ends while it is written grpcio reports
        # an error of its own.
        kind, what = (
            (channel.unary_stream, messages[0])
            if len(messages) == 1
            else (channel.stream_stream, iter(messages))
        )
        made = kind(method)(
            what, metadata=tuple(metadata), compression=compression, timeout=deadline_s
        )
        try:
            async for each in made:
                replies.append(each if reply is None else value(reply(each)))
                if len(replies) == most:
                    made.cancel()
                    return {"replies": replies}
        except grpc.aio.AioRpcError:
            pass  # the call has its code and details
        answer: Answer = {
            "replies": replies,
            "code": (await made.code()).name,
            "details": await made.details() or "",
        }
        answer |= _metadata("initial", await made.initial_metadata())
        answer |= _metadata("trailing", await made.trailing_metadata())
        return answer


def value(message: Any) -> Any:
    """Return a message as JSON."""
    if not hasattr(message, "DESCRIPTOR"):
        return message
    return MessageToDict(message, preserving_proto_field_name=True)


def _metadata(part: str, pairs: Any) -> Answer:
    return {f"{part} {key}": text for key, text in pairs or () if key not in _LEFT_OUT}
