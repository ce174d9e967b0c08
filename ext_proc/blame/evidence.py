"""Evidence: what is known of one attempt at a replica, and of its siblings. Pure.

An *attempt* is one try of the proxy to have a request answered by one replica; a request has
several where the proxy retries it. Its *siblings* are the other attempts of the same request.

Source: the proxy's log of attempts (``ext_proc.feedback``). Unknown values are ``None``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Ended(StrEnum):
    """What ended an attempt."""

    DONE = "done"
    """Nothing else: the replica's answer is complete, or the attempt is still running."""
    UNREACHED = "unreached"
    """No connection could be made: refused, timed out, or broken in the handshake."""
    BROKEN = "broken"
    """The replica closed or reset the connection or the stream, or broke the protocol. A stream
    that HTTP/2 refused is one of these; it counts as read where bytes had been written."""
    TRY_TIMEOUT = "try-timeout"
    """Our bound on the time to an answer's headers, which applies to each attempt."""
    TIMEOUT = "timeout"
    """Our timeout of the whole request, or the caller's ``grpc-timeout``."""
    LEFT = "left"
    """The caller disconnected or stalled."""
    LOCAL = "local"
    """The proxy itself: an overflow, no route, no replica."""


class Attempt(NamedTuple):
    """What is known of one attempt."""

    address: str | None
    """``ip:port`` of the replica; ``None`` if none was involved."""
    ended: Ended
    read: bool | None
    """The replica was sent the request, or a part of it. ``None`` = unknown."""
    answered: bool
    """Headers came back."""
    began: bool
    """Bytes of an answer's body came back."""
    status: int
    """HTTP status of the answer; 0 = none."""
    grpc_status: int | None = None
    """``None`` = none, or not gRPC."""
    elsewhere: bool = False
    """Another replica had the request's model READY when the picker chose."""

    @property
    def reached(self) -> bool:
        """Whether a connection to the replica was made."""
        return self.ended is not Ended.UNREACHED and self.ended is not Ended.LOCAL


class Evidence(NamedTuple):
    """An attempt with what else bears on its verdict."""

    attempt: Attempt
    alike: bool = False
    """All attempts of this request, at two replicas or more, failed in the same way."""
    sibling_well: bool = False
    """Another replica answered the same request well."""
    restarted: bool | None = None
    """The replica's process was replaced since the attempt began. ``None`` = unknown."""
    others_well: bool | None = None
    """The replica answered other requests well since the attempt began. ``None`` = unknown."""
    unreadable: bool = False
    """The picker could not read the body, or found it wrong."""
