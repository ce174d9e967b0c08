"""One HTTP exchange as a state machine: events in, actions out. Pure.

The law is at the top of ``machine``; ``events`` and ``actions`` are its alphabet, ``refusals``
writes a refusal in its caller's dialect.
"""

from ext_proc.exchange.actions import (
    Action,
    BodyModeOverride,
    PassThrough,
    Pick,
    Refuse,
    ReplyBody,
    ReplyHead,
    ReplyResponse,
    ReplyTrailers,
)
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
from ext_proc.exchange.machine import Exchange, IllegalEventError
from ext_proc.exchange.router import RequestRouter
from ext_proc.exchange.state import ExchangeState

__all__ = [
    "Action",
    "Body",
    "BodyModeOverride",
    "BodySending",
    "Event",
    "Exchange",
    "ExchangeState",
    "Head",
    "IllegalEventError",
    "Lost",
    "PassThrough",
    "Pick",
    "Refuse",
    "ReplyBody",
    "ReplyHead",
    "ReplyResponse",
    "ReplyTrailers",
    "RequestRouter",
    "Response",
    "ResponsePart",
    "Stopped",
    "Trailers",
]
