"""One HTTP exchange as a state machine: events in, actions out. Pure.

The law is at the top of ``machine``; ``events`` and ``actions`` are its alphabet, ``refusals``
writes a refusal in its caller's dialect.
"""

from ext_proc.exchange.actions import (
    Action,
    Ask,
    Echo,
    Pick,
    Refuse,
    ReplyBody,
    ReplyHead,
    ReplyResponse,
    ReplyTrailers,
)
from ext_proc.exchange.chooser import Chooser
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
from ext_proc.exchange.state import State

__all__ = [
    "Action",
    "Ask",
    "Body",
    "BodySending",
    "Chooser",
    "Echo",
    "Event",
    "Exchange",
    "Head",
    "IllegalEventError",
    "Lost",
    "Pick",
    "Refuse",
    "ReplyBody",
    "ReplyHead",
    "ReplyResponse",
    "ReplyTrailers",
    "Response",
    "ResponsePart",
    "State",
    "Stopped",
    "Trailers",
]
