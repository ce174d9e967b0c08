"""One HTTP exchange as a state machine: events in, actions out. Pure.

``machine`` states the rules. ``messages`` defines its inputs and outputs, and ``refusals`` writes a
refusal in the caller's dialect.
"""

from ext_proc.exchange.known import ExchangeOptions
from ext_proc.exchange.machine import Exchange, ExchangeState, IllegalEventError
from ext_proc.exchange.messages import (
    Action,
    Body,
    BodyModeOverride,
    BodySending,
    Event,
    Head,
    KeepWaiting,
    Lost,
    PassThrough,
    Pick,
    Refuse,
    ReplyBody,
    ReplyHead,
    ReplyResponse,
    ReplyTrailers,
    Response,
    ResponsePart,
    Stopped,
    Trailers,
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
