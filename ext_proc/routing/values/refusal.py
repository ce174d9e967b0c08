"""Refusal: the result of a decision that chose no endpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ext_proc.routing.values.request import Form

if TYPE_CHECKING:
    from ext_proc.routing.values.proposal import Proposal


class RefusalKind(StrEnum):
    """Reason of a refusal; the value is machine-readable."""

    NO_ENDPOINTS = "no-endpoints"
    """503: no endpoint is eligible."""
    WRONG_VERSION = "wrong-version"
    """503: each replica of the variant would answer by another version than the variant's."""
    SATURATED = "saturated"
    """429: all eligible endpoints are at their in-flight limit."""
    QUEUE_FULL = "queue-full"
    """429: they are, and as many requests wait for them as may."""
    DEADLINE_UNMET = "deadline-unmet"
    """429: they are, and none is expected to be free before the caller's deadline."""
    DEADLINE_PASSED = "deadline-passed"
    """504: the caller's deadline has passed before a replica could take the request."""
    TOO_MANY_UPLOADS = "too-many-uploads"
    """429: the client has as many uploads under way as it may have."""
    UNKNOWN_POOL = "unknown-pool"
    """404: no pool of that name."""
    UNKNOWN_MODEL = "unknown-model"
    """404: no pool serves that model in that form."""
    UNKNOWN_VERSION = "unknown-version"
    """404: the pool has no replica of that version."""
    BAD_REQUEST = "bad-request"
    """400: the body cannot be read, and only the body names the pool."""
    TRAILERS = "trailers"
    """400: trailers end a body that is read in part."""
    LENGTH_REQUIRED = "length-required"
    """411: the proxy would lose the end of a chunked body."""
    BAD_SHAPE = "bad-shape"
    """400: a tensor's declared shape contradicts its data, or is above the pool's bound."""
    TOO_DEEP = "too-deep"
    """400: the JSON nests so deeply that reading it could end the replica."""
    TOO_COMPLEX = "too-complex"
    """400: reading the request would cost more than a request may."""
    TOO_MANY_TOKENS = "too-many-tokens"
    """400: the request asks for more tokens than the pool allows."""
    HEADERS_TOO_LARGE = "headers-too-large"
    """431: the headers are longer than the pool's replicas take."""
    TOO_LARGE = "too-large"
    """413: the body exceeds the pool's ``max_body_bytes``."""
    HUNG_REPLICA = "hung-replica"
    """503: the replica that had the request was found hung, and no other one may get it."""
    DEADLY_REQUEST = "deadly-request"
    """422: replicas died each time they had this request."""
    SUSPECT_WAITS = "suspect-waits"
    """503: the request may have killed replicas, and cannot run alone now."""
    UNPLACED = "unplaced"
    """503: the picker of the group that places this sequence does not answer."""
    NO_PICK = "no-pick"
    """503: there is no pick, and the picker's operator requires one."""


SATURATED: Final = RefusalKind.SATURATED  # see `exchange.machine`


@dataclass(frozen=True, slots=True)
class Refusal:
    """No endpoint was chosen."""

    kind: RefusalKind
    message: str
    """One sentence for the caller."""
    malformed: bool = False
    """The bytes are no message at all: for gRPC this is INTERNAL, as Triton answers it."""
    wait_s: float | None = None
    """How long the request would wait for a replica, seconds; ``None`` = unknown."""
    limit: int | None = None
    """The limit that refuses it: requests in flight of all replicas that could take it."""
    proposed: Proposal | None = None
    """What may be asked of the picker that places the sequence (``UNPLACED``)."""


NO_PICK: Final = Refusal(
    RefusalKind.NO_PICK, "the picker cannot choose a replica for this request now"
)
NO_MODEL: Final = Refusal(
    RefusalKind.BAD_REQUEST,
    "the body names no model; write its name as `model`, or send the header tidegate-model",
)
DEADLINE_PASSED: Final = Refusal(
    RefusalKind.DEADLINE_PASSED, "the deadline of the request passed before it could be sent"
)
HUNG: Final = Refusal(
    RefusalKind.HUNG_REPLICA,
    "the replica that had this request gives no sign of life, and no other one may get the request",
)
MUST_WAIT: Final = Refusal(
    RefusalKind.SUSPECT_WAITS,
    "several replicas died while they had this request or one sent with it; it must run alone,"
    " and cannot now",
)
TOO_MANY_UPLOADS: Final = Refusal(
    RefusalKind.TOO_MANY_UPLOADS,
    "this client has as many uploads under way as it may have (routing.uploads_per_client);"
    " finish some of them first",
)
TRITON_FORMS: Final = frozenset(
    {Form.GRPC_INFER, Form.GRPC_STREAM, Form.HTTP_INFER, Form.GENERATE, Form.GENERATE_STREAM}
)
"""Forms of Triton's own API, whose callers know its words."""
_NEGATIVE: Final = re.compile(r"[ \t-\r]*(-[0-9]{1,19})(?![0-9])")
_INT64: Final = 2**63
_INT64_DIGITS: Final = 19


def unknown_in_triton(model: str, version: str | None, *, served: bool) -> Refusal:
    """Return the refusal of an inference of what is not there, in the words of Triton 2.51.

    Args:
        model: The model's name.
        version: The version, as ``values.version`` returns it; ``None`` = none is named.
        served: Whether a pool serves the model, in other versions.
    """
    name = _text(model)
    if version is not None and not _is_number(version):
        negative = _NEGATIVE.match(version)
        wrong = (
            f"invalid model version specified '{_text(version)}' "
            if negative is not None and int(negative[1]) >= -_INT64
            else "failed to get model version from specified version string"
            f" '{_text(version)}' (details: stol)"
        )
        text = f"{wrong}, version should be an integral value > 0"
        return Refusal(RefusalKind.BAD_REQUEST, text)
    if served and version is not None:
        text = f"Request for unknown model: '{name}' version {version} is not found"
        return Refusal(RefusalKind.UNKNOWN_VERSION, text)
    return Refusal(RefusalKind.UNKNOWN_MODEL, f"Request for unknown model: '{name}' is not found")


def _is_number(version: str) -> bool:
    decimal = version.isascii() and version.isdecimal() and len(version) <= _INT64_DIGITS
    return decimal and int(version) < _INT64


def _text(value: str) -> str:
    """Return a text that can be encoded."""
    return value.encode("utf-8", "replace").decode()
