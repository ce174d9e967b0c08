"""What an exchange knows of its request before the decision, and what it needs of the body for it.

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
6. Envoy 1.40 (and before) sends the picker the first part of a body, and holds what follows. If
   nothing follows but the end, without a byte, Envoy forgets it, and the replica waits until
   ``timeouts.idle``. So it is with a chunked HTTP/1.1 body that crosses Envoy's buffer in the read
   that also has the last chunk. Such a part is the whole body, and no length was declared: it is
   refused with a reason rather than left to hang. A body that is not known to be whole goes on.
   Source: ``source/extensions/filters/http/ext_proc/processor_state.cc``, where what is left is
   injected only if it has bytes.
"""

from __future__ import annotations

import re
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from ext_proc.exchange.messages import DUPLEX, NONE, STREAMED
from ext_proc.exchange.refusals import speaks_grpc
from ext_proc.requests import Blocks, read_head, session_of, split_adapter, token_blocks
from ext_proc.requests.forms.grpc_infer import FRAME_HEADER_BYTES
from ext_proc.requests.forms.http_infer import LENGTH_HEADER
from ext_proc.requests.parsing.values import sooner
from ext_proc.requests.reading import GRPC_SERVICE
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import (
    GRPC_STREAM,
    LOWERED,
    MODEL_CALL,
    NAMES_ADAPTER,
    OTHER,
    Form,
    Request,
)
from tidegate_api.names import (
    AGAIN_HEADER,
    OBJECTIVE_HEADER,
    SUBSET_KEY,
    UNNAMED_ROUTE_PREFIX,
    ClusterRef,
    parse_cluster,
)
from tidegate_api.pools import LEAST_PEEK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ext_proc.exchange.messages import Body, Head
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


NO_TOKENIZERS: Final[Mapping[str, Tokenizer]] = MappingProxyType({})
NO_CHATS: Final[Mapping[str, Chats]] = MappingProxyType({})


class ExchangeOptions(NamedTuple):
    """What all exchanges of a picker share beside its router."""

    one_destination: bool = False
    """A pick for a generic proxy is one address: its cluster cannot read a list."""
    require_pick: bool = False
    """A request for which there is no pick is refused instead of left to the proxy."""
    require_model: bool = False
    """A request whose route names no pool, and whose body should name a model and does not, is
    refused."""
    tokenizers: Mapping[str, Tokenizer] = NO_TOKENIZERS
    """Loaded tokenizers, by the path that pools name."""
    chats: Mapping[str, Chats] = NO_CHATS
    """Chats of pools that name a template, by pool."""


USUAL: Final = ExchangeOptions()


class KnownRequest:
    """Information about a request before the decision."""

    __slots__ = (
        "body",
        "deadline",
        "features",
        "generic",
        "head",
        "held",
        "pool",
        "ref",
        "repeatable",
        "request",
        "says_end",
        "since",
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
        self.says_end = head.hides_end
        """The proxy is told whether the request's end is known, as it could not know it."""
        self.repeatable = not self.says_end
        """The proxy can send the request again: its end is known, or the proxy waits for it."""
        self.generic = False
        """The control server did not configure the proxy."""


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
    pool = None
    if head.route is None or not head.route.startswith(UNNAMED_ROUTE_PREFIX):
        pool = pools.get(ref.pool)
        if pool is None:
            return "unknown-cluster"
    elif not head.gated and head.request_body is NONE and not head.end_of_stream:
        return "ungated"
    return KnownRequest(head, ref, read_head(head.method, head.path, head.headers), pool)


def _generic(head: Head) -> KnownRequest:
    features = read_head(head.method, head.path, head.headers)
    grpc = speaks_grpc(head.headers) or head.path.startswith(GRPC_SERVICE)
    known = KnownRequest(head, _GENERIC_GRPC if grpc else _GENERIC_HTTP, features, None)
    known.generic = known.says_end = True
    if not head.path and features.form is OTHER and not grpc:
        features.form = Form.OPENAI
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
    options: ExchangeOptions,
    scale_of: Callable[[str, str | None], float],
    *,
    cheap: bool = False,
) -> Request:
    """Return the router's request.

    Args:
        known: What is known of the request.
        pool: Its pool.
        subset: The subset hint of the proxy; ``None`` = no limit.
        options: What all exchanges share.
        scale_of: Returns the bytes per token of a pool's and model's text.
        cheap: The prompt is neither cut nor counted (``routing.relief``).
    """
    head, ref = known.head, known.ref
    features = split_adapter(known.features, pool.models)
    if pool.low_objectives and head.headers.get(OBJECTIVE_HEADER) in pool.low_objectives:
        features.priority = max(features.priority or 0, LOWERED)  # safe, as below
    # Safe: readers create the features for this request only.
    features.session = session_of(features, head.headers, pool.session_header)
    hint = head.headers.get(SUBSET_KEY) if known.generic else None
    if hint is not None:
        subset = both(subset, entries_of((hint,)))
    tokenizer = options.tokenizers.get(pool.tokenizer) if pool.tokenizer else None
    chat = options.chats.get(pool.name) if features.chat is not None else None
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
        subset=subset,
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


FIRST_PART_BYTES: Final = 65_536
"""Maximum bytes for which a duplex decision waits; at most one more chunk is held."""

_UNARY: Final = frozenset(
    {
        Form.GRPC_INFER,
        Form.HTTP_INFER,
        Form.GENERATE,
        Form.GENERATE_STREAM,
        Form.OPENAI,
        Form.RESPONSES,
        Form.MESSAGES,
        Form.SCORE,
        Form.SGLANG,
    }
)
"""Unary inference. A stream's body must not be waited for: its client may wait for a response."""

_GRPC: Final = frozenset({Form.GRPC_INFER, Form.GRPC_STREAM, Form.MODEL_CALL})


def needs_body(head: Head, form: Form, pool: Pool | None, *, asks: bool = True) -> bool:
    """Return whether the decision waits for the body.

    Args:
        head: The request headers.
        form: Form of the request.
        pool: Pool of the request; ``None`` = not known yet.
        asks: The proxy sends a body that it did not announce if the reply requests it.
    """
    sent = head.request_body
    if head.end_of_stream or sent is STREAMED or (sent is NONE and not asks):
        return False
    if form in _UNARY:
        return pool is None or pool.body != "none"
    # A stream's route announces duplex only if its pool chose to read the first message.
    return sent is DUPLEX if form is GRPC_STREAM else pool is None and form is MODEL_CALL


def has_first_part(held: bytearray, form: Form) -> bool:
    """Return whether the held part of a duplex body suffices for a decision.

    A gRPC call needs its first message; `FIRST_PART_BYTES` suffice in any case.
    """
    if len(held) >= FIRST_PART_BYTES:
        return True
    if form not in _GRPC or len(held) < FRAME_HEADER_BYTES:
        return False
    return len(held) >= FRAME_HEADER_BYTES + int.from_bytes(held[1:FRAME_HEADER_BYTES], "big")


TRAILERS: Final = Refusal(
    RefusalKind.TRAILERS,
    "trailers end the body of the request; send it without trailers"
    " (in HTTP/2: END_STREAM on the last DATA frame)",
)
LOST_END: Final = Refusal(
    RefusalKind.LENGTH_REQUIRED,
    "the proxy may lose the end of this body, which has no declared length and just exceeds its"
    " buffer; send it with a content-length",
)
_WITH_FRAMES: Final = frozenset({"HTTP/2", "HTTP/3"})
"""Protocols that send a body in frames, of which the last one says so."""
CUT_BYTES: Final = LEAST_PEEK_BYTES
"""Envoy cuts no body that is as long or shorter."""
_MAX_BYTES: Final = 256 * 2**10
"""Longer parts have crossed the buffer before their last read."""


def loses_end(head: Head, body: Body) -> bool:
    """Return whether a first part is all of a chunked body.

    One that Envoy's buffer holds was not cut: trailers end it. Over HTTP/2 and HTTP/3 no end is
    lost.

    Args:
        head: Of the request.
        body: What the proxy sent of its body.
    """
    if body.end_of_stream or "content-length" in head.headers or head.protocol in _WITH_FRAMES:
        return False
    return LEAST_PEEK_BYTES < len(body.chunk) <= _MAX_BYTES and _is_whole(head.headers, body.chunk)


def _is_whole(headers: Mapping[str, str], chunk: bytes) -> bool:
    length = headers.get(LENGTH_HEADER, "")
    end = int(length) if length.isdecimal() and len(length) < len(str(_MAX_BYTES)) + 1 else 0
    text = chunk[:end] if end else chunk
    if not text.rstrip().endswith(b"}"):
        return False  # of a document that is cut, mostly
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return not end or end + _tensor_bytes(document) == len(chunk)


def _tensor_bytes(document: Any) -> int:
    """Return how many bytes of tensors follow a JSON part that declares them."""
    total = 0
    inputs = document.get("inputs") if isinstance(document, dict) else None
    for each in inputs if isinstance(inputs, list) else ():
        parameters = each.get("parameters") if isinstance(each, dict) else None
        size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
        total += size if isinstance(size, int) else 0
    return total


def too_large(body: Body, pool: Pool) -> Refusal | None:
    """Enforce ``max_body_bytes`` of pools that read whole bodies; Envoy bounds first parts."""
    if pool.body != "full" or len(body.chunk) <= pool.max_body_bytes:
        return None
    return Refusal(
        RefusalKind.TOO_LARGE,
        f"the body has more than the {pool.max_body_bytes} bytes"
        f" that pool {pool.name!r} reads (routing.max_body)",
    )


def ended_by_trailers(body: Body) -> bool:
    """Return whether trailers end the body that Envoy was asked for, as far as it shows that.

    Envoy shows no trailers here, but cuts a body only above its bound, whose least value is known:
    a shorter part is the whole. A longer one may be either.
    """
    return not body.end_of_stream and len(body.chunk) <= CUT_BYTES
