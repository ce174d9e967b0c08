"""One HTTP exchange as a state machine: events in, actions out. Pure.

``machine`` states the rules. ``events`` and ``replies`` define its inputs and outputs, and
``refusals`` writes a refusal in the caller's dialect.
"""

from ext_proc.exchange.events import (
    Body,
    BodySending,
    Event,
    Head,
    Lost,
    Response,
    ResponsePart,
    Stopped,
    Trailers,
)
from ext_proc.exchange.known import ExchangeOptions
from ext_proc.exchange.machine import Exchange, ExchangeState, IllegalEventError
from ext_proc.exchange.replies import (
    Action,
    BodyModeOverride,
    KeepWaiting,
    PassThrough,
    Pick,
    Refuse,
    ReplyBody,
    ReplyHead,
    ReplyResponse,
    ReplyTrailers,
)

__all__ = [
    "Action",
    "Body",
    "BodyModeOverride",
    "BodySending",
    "Event",
    "Exchange",
    "ExchangeOptions",
    "ExchangeState",
    "Head",
    "IllegalEventError",
    "KeepWaiting",
    "Lost",
    "PassThrough",
    "Pick",
    "Refuse",
    "ReplyBody",
    "ReplyHead",
    "ReplyResponse",
    "ReplyTrailers",
    "Response",
    "ResponsePart",
    "Stopped",
    "Trailers",
]
