"""What an exchange knows of its request before the decision.

Rules:

1. The cluster of the proxy's route names pool and variant where the control server named it. Then
   the request comes from a proxy that the control server configured.
2. A request without such a cluster comes from a *generic* proxy. Its pool is found by what the
   request says: headers, path, body, else the default pool.
3. A cluster with a name of the control server's form whose pool is not known (any more) says that
   the proxy knows the pool, and balances over it by itself.
4. Where a generic proxy does not send the path, the request is read as an inference of OpenAI's
   form, which names its model in the body.
5. Subset hints are the endpoints to which a request is restricted. Source: Gateway API Inference
   Extension, endpoint picker protocol 1.0.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from ext_proc.exchange.messages import NONE
from ext_proc.exchange.refusals import speaks_grpc
from ext_proc.requests import Blocks, read_head, session_of, split_adapter, token_blocks
from ext_proc.requests.head import GRPC_SERVICE
from ext_proc.requests.parsing.values import sooner
from ext_proc.routing.values.request import LOWERED, NAMES_ADAPTER, OTHER, Form, Request
from tidegate_api.names import (
    AGAIN_HEADER,
    OBJECTIVE_HEADER,
    SUBSET_KEY,
    UNNAMED_ROUTE_PREFIX,
    ClusterRef,
    parse_cluster,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ext_proc.exchange.messages import Head
    from ext_proc.requests import Chats, Tokenizer
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Features


cluster_of: Final = lru_cache(maxsize=4096)(parse_cluster)
"""Every request of a configured proxy names a cluster, and there are few of them."""

_DIGITS: Final = 9
"""Maximum digits of a length that is read."""
_GENERIC_HTTP: Final = ClusterRef("", "", "http")
_GENERIC_GRPC: Final = ClusterRef("", "", "grpc")


_SECONDS: Final = re.compile(r"\d{1,9}(\.\d{1,9})?")


class ExchangeOptions(NamedTuple):
    """Settings of the picker that all exchanges share."""

    one_destination: bool = False
    """A pick for a generic proxy is one address: its cluster cannot read a list."""
    require_pick: bool = False
    """A request for which there is no pick is refused instead of left to the proxy."""
    require_model: bool = False
    """A request whose route names no pool, and whose body should name a model and does not, is
    refused."""


USUAL: Final = ExchangeOptions()


class KnownRequest:
    """Information about a request before the decision."""

    __slots__ = (
        "asked",
        "body",
        "deadline",
        "features",
        "generic",
        "guessed",
        "head",
        "held",
        "hint",
        "once",
        "pool",
        "ref",
        "repeatable",
        "request",
        "since",
        "trailed",
        "waited",
    )

    def __init__(self, head: Head, ref: ClusterRef, features: Features, pool: Pool | None) -> None:
        self.head = head
        self.ref = ref
        """The cluster of the route; of a generic proxy only its protocol counts."""
        self.features = features
        self.pool = pool
        self.deadline: float | None = None
        """When the caller will have left by its headers, monotonic seconds; ``None`` = unknown."""
        self.since: tuple[float, float]
        """When its headers, or the body in their place, came: monotonic and Unix seconds."""
        self.request: Request
        """What is to be decided; set with the decision."""
        self.held: bytearray | None = None
        """Chunks that wait for the decision; ``None`` if the body is not sent in duplex."""
        self.body: bytes | None = None
        """The whole body; ``None`` = not read, or not to its end."""
        self.repeatable = not head.hides_end
        """The proxy can send the request again: its end is known, or the proxy waits for it."""
        self.waited = False
        """It has waited for a replica with room."""
        self.trailed = False
        """Trailers end the body; Envoy may send such a body twice where it repeats requests."""
        self.once = False
        """Its reading is beyond a bound, so that one replica may get it, once."""
        self.asked = False
        """The proxy was asked for the first part of the body, and not to repeat the request."""
        self.generic = False
        """The control server did not configure the proxy."""
        self.guessed = False
        """The form is a guess (rule 4)."""
        self.hint: frozenset[str] | None = None
        """Subset hint in a request header; read of generic proxies only."""


def is_generic(head: Head) -> bool:
    """Return whether a request comes from a proxy that the control server did not configure."""
    return not head.cluster or cluster_of(head.cluster) is None


def locate(head: Head, pools: Mapping[str, Pool]) -> KnownRequest | str:
    """Read the headers and the route; a string is the reason why there can be no pick."""
    if not pools:
        return "no-pools"
    ref = cluster_of(head.cluster) if head.cluster else None
    if ref is None:
        return _generic(head)
    unnamed = head.route is not None and head.route.startswith(UNNAMED_ROUTE_PREFIX)
    pool = None if unnamed else pools.get(ref.pool)
    if pool is None and not unnamed:
        return "unknown-cluster"
    if unnamed and not head.gated and head.request_body is NONE and not head.end_of_stream:
        return "ungated"
    return KnownRequest(head, ref, read_head(head.method, head.path, head.headers), pool)


def _generic(head: Head) -> KnownRequest:
    features = read_head(head.method, head.path, head.headers)
    grpc = speaks_grpc(head.headers) or head.path.startswith(GRPC_SERVICE)
    known = KnownRequest(head, _GENERIC_GRPC if grpc else _GENERIC_HTTP, features, None)
    known.generic = True
    if not head.path and features.form is OTHER and not grpc:
        features.form, known.guessed = Form.OPENAI, True
    hint = head.headers.get(SUBSET_KEY)
    if hint is not None:
        known.hint = entries_of((hint,))
    return known


def names_nothing(features: Features) -> bool:
    """Return whether headers and path name neither a pool nor a model."""
    return features.pool is None and features.model is None


def lacks_model(known: KnownRequest) -> bool:
    """Return whether a request whose body is to name the model is known whole, and names none."""
    features = known.features
    whole = known.head.end_of_stream or known.body is not None
    return whole and not features.cut and features.model is None and features.form in NAMES_ADAPTER


def may_move(head: Head, pool: Pool, body_bytes: int | None) -> bool:
    """Return whether the proxy can send a repeatable request again whole, and the pool wants it.

    Args:
        head: The request's head.
        pool: Its pool.
        body_bytes: Length of the body that was read to its end; ``None`` = as declared.
    """
    if pool.hung_requests != "move" or not pool.move_bytes:
        return False
    if body_bytes is not None:
        return body_bytes <= pool.move_bytes
    length = head.headers.get("content-length", "0" if head.end_of_stream else "")
    return length.isdecimal() and len(length) <= _DIGITS and int(length) <= pool.move_bytes


def may_pass(known: KnownRequest) -> bool:
    """Return whether any replica of a pool may serve a request, and the proxy may choose it.

    Only calls of OpenAI's form are known not to belong to a sequence before their bodies are read.
    Where the pool has bodies judged they are: else a flood would let a deadly request through.
    """
    pool = known.pool
    return (
        pool is not None
        and not pool.needs_pick
        and not known.generic
        and known.features.form is Form.OPENAI
        and len(pool.variants) == 1
        and len(pool.models) <= 1
        and not pool.model_needs
        and pool.unsound_requests == "pass"
        and not pool.refuse_deadly
        and not pool.max_tokens
    )


def request_of(
    known: KnownRequest,
    pool: Pool,
    subset: frozenset[str] | None,
    tokenizers: Mapping[str, Tokenizer],
    chats: Mapping[str, Chats],
    scale_of: Callable[[str, str | None], float],
    *,
    cheap: bool = False,
) -> Request:
    """Return the router's request.

    Args:
        known: What is known of the request.
        pool: Its pool.
        subset: The subset hint of the proxy; ``None`` = no limit.
        tokenizers: Loaded tokenizers, by the path that pools name.
        chats: Chats of pools that name a template, by pool.
        scale_of: Returns the bytes per token of a pool's and model's text.
        cheap: The prompt is neither cut nor counted (``routing.relief``).
    """
    head, ref = known.head, known.ref
    features = split_adapter(known.features, pool.models)
    if pool.low_objectives and head.headers.get(OBJECTIVE_HEADER) in pool.low_objectives:
        features.priority = max(features.priority or 0, LOWERED)  # safe, as below
    session = session_of(features, head.headers, pool.session_header)
    if session != features.session:
        features.session = session  # safe: readers create the features for this request only
    tokenizer = tokenizers.get(pool.tokenizer) if pool.tokenizer else None
    chat = chats.get(pool.name) if features.chat is not None else None
    scale = scale_of(pool.name, features.model)
    if cheap:
        features.chat = None  # the body is not kept
        blocks = Blocks((), pool.block_chars / scale, None, scale)
    else:
        blocks = token_blocks(
            features, pool.block_chars, pool.block_tokens, tokenizer, pool.seed, chat, scale
        )
    return Request(
        pool=pool.name,
        variant=ref.variant if pool.name == ref.pool else None,
        protocol=ref.protocol,
        features=features,
        blocks=blocks.hashes,
        block_tokens=blocks.block_tokens,
        tokens=blocks.tokens,
        chat=blocks.chat,
        subset=subset if known.hint is None else both(subset, known.hint),
        headers=head.headers,
        body=known.body if pool.refuse_deadly else None,
        repeatable=known.repeatable and AGAIN_HEADER not in head.headers,
        client=head.client,
        bytes_per_token=blocks.bytes_per_token,
        batch=blocks.batch,
        limited=not known.generic,
    )


def patience_until(known: KnownRequest, pool: Pool) -> float | None:
    """Return when a caller will have left by its headers, monotonic seconds; ``None`` = unknown.

    Beside the deadline counts the pool's ``timeout_header``, in seconds, as clients of OpenAI send
    it: how long they wait for the first byte, and for each further one.
    """
    told = known.head.headers.get(pool.timeout_header) if pool.timeout_header else None
    if told is None or _SECONDS.fullmatch(told) is None:
        return known.deadline
    return sooner(known.deadline, known.since[0] + float(told) if float(told) else None)


MAX_SUBSET: Final = 10_000
"""Maximum entries read of a subset hint; the rest could only enlarge the choice."""


def entries_of(texts: Iterable[str]) -> frozenset[str]:
    """Return the entries, ``ip:port`` or ``ip``, of comma-separated texts, blanks trimmed."""
    entries = (entry.strip() for text in texts for entry in text.split(","))
    return frozenset([entry for entry in entries if entry][:MAX_SUBSET])


def both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    """Return what two hints allow together; ``None`` = no limit.

    An entry without a port allows every port of its host.
    """
    if one is None or other is None:
        return other if one is None else one
    return frozenset(
        entry for entry in one | other if _allowed(entry, one) and _allowed(entry, other)
    )


def _allowed(entry: str, hint: frozenset[str]) -> bool:
    return entry in hint or _host(entry) in hint


def _host(entry: str) -> str:
    """Return the entry's host; an IPv6 address keeps its brackets."""
    host, colon, _ = entry.rpartition(":")
    return host if colon and (":" not in host or host.endswith("]")) else entry
