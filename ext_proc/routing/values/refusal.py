"""Refusal: the result of a decision that chose no endpoint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class RefusalKind(StrEnum):
    """Reason of a refusal; the value is machine-readable."""

    NO_ENDPOINTS = "no-endpoints"
    """503: no endpoint is eligible."""
    WRONG_VERSION = "wrong-version"
    """503: each replica of the variant would answer by another version than the variant's."""
    SATURATED = "saturated"
    """429: all eligible endpoints are at their in-flight limit."""
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
    DEADLY_REQUEST = "deadly-request"
    """422: replicas died each time they had this request."""
    SUSPECT_WAITS = "suspect-waits"
    """503: the request may have killed replicas, and cannot run alone now."""
    NO_PICK = "no-pick"
    """503: there is no pick, and the picker's operator requires one."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """No endpoint was chosen."""

    kind: RefusalKind
    message: str
    """One sentence for the caller."""
    malformed: bool = False
    """The bytes are no message at all: for gRPC this is INTERNAL, as Triton answers it."""


NO_PICK: Final = Refusal(
    RefusalKind.NO_PICK, "the picker cannot choose a replica for this request now"
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
