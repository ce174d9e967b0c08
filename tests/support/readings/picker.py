"""What the picker makes of a request: it reads it, refuses it, or knows only a part of it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from envoy.config.core.v3.base_pb2 import HeaderValue

from ext_proc.exchange import Body, Exchange, Head, Lost, Refuse
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Pool, Variant
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.server.wire import read_headers
from support.readings.cases import MODEL
from support.streams import replicas

if TYPE_CHECKING:
    from collections.abc import Callable

    from ext_proc.routing.values.request import Features, Request
    from support.readings.cases import Case

PEEK_BYTES: Final = 65_536
PART_BYTES: Final = {False: 80_000, True: 147_000}
"""How much of a longer body Envoy shows, over HTTP and gRPC."""
READ_BYTES: Final = 2**20
"""Bound of what is read of a compressed body, before and after."""


class Verdict(Enum):
    """What becomes of the request."""

    KNOWN = "known"
    """It is read to its end, and routed."""
    UNREADABLE = "unreadable"
    """It is routed although it could not be read."""
    BEYOND = "beyond the bound"
    """It is routed, and only a part of it was read."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Reading:
    """What the picker decides."""

    verdict: Verdict
    features: Features | None
    """What it knows; ``None`` if the request is refused."""
    why: str
    """Reason of a refusal, or why the request could not be read."""
    message: str = ""


class _Recorder(Router):
    """Records the request instead of choosing a replica."""

    def __init__(self) -> None:
        super().__init__(random.Random(1))
        pool = Pool(
            "llm",
            models=frozenset({MODEL}),
            default_for_grpc=True,
            variants=(Variant("stable", 1),),
            endpoints=replicas(1),
        )
        self.set_pools({"llm": pool}, 0.0)
        self.request: Request | None = None

    def decide(self, request: Request, now: float, unix_now: float) -> Refusal:  # noqa: ARG002
        self.request = request
        return Refusal(RefusalKind.NO_ENDPOINTS, "recorded")


class Picker:
    """Reads requests as the picker does, with the defaults of a pool.

    Args:
        wrong: Makes a planted fault: it changes a request before the picker reads it.
    """

    def __init__(self, wrong: Callable[[Case], Case] | None = None) -> None:
        self._router = _Recorder()
        self._wrong = wrong

    def read(self, case: Case) -> Reading:
        """Return what the picker decides about a request that Envoy shows in `peek`."""
        if self._wrong is not None:
            case = self._wrong(case)
        protocol = "grpc" if case.is_grpc else "http"
        length = () if case.chunked or case.is_grpc else (("content-length", str(len(case.body))),)
        pairs = [
            HeaderValue(key=name, raw_value=value.encode("latin-1"))
            for name, value in (*case.headers, *length)
        ]
        head = Head(
            "POST",
            case.path,
            read_headers(pairs),
            end_of_stream=False,
            cluster=f"llm/stable/{protocol}",
            route=f"llm/{protocol}",
        )
        whole = len(case.body) <= PEEK_BYTES
        shown = case.body if whole else case.body[: PART_BYTES[case.is_grpc]]
        self._router.request = None
        talk = Exchange(self._router)
        actions = [*talk.on(head, 1.0, 1000.0)]
        if not any(isinstance(each, Refuse) for each in actions):
            actions += talk.on(Body(shown, end_of_stream=whole), 1.0, 1000.0)
        talk.on(Lost(clean=True), 1.0, 1000.0)
        if self._router.request is None:
            (refused,) = [each for each in actions if isinstance(each, Refuse)]
            return Reading(Verdict.REFUSED, None, refused.reason, refused.body.decode())
        features = self._router.request.features
        if talk.unreadable is not None:
            return Reading(Verdict.UNREADABLE, features, talk.unreadable)
        if not whole:
            return Reading(Verdict.BEYOND, features, "")
        return Reading(Verdict.KNOWN, features, "")
