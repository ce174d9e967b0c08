"""Requests: the input of a decision.

Unknown values are ``None``, never 0.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ext_proc.routing.values.plain import Plain
from ext_proc.routing.values.scale import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.routing.values.pool import Protocol


class SequenceKey(NamedTuple):
    """Identity of a Triton sequence; the integer 1 and the string "1" are different ones."""

    model: str
    version: str
    id: int | str


class Form(StrEnum):
    """Protocol form of a request."""

    GRPC_INFER = "grpc-infer"
    GRPC_STREAM = "grpc-stream"
    HTTP_INFER = "http-infer"
    GENERATE = "generate"
    GENERATE_STREAM = "generate-stream"
    OPENAI = "openai"
    RESPONSES = "responses"
    MESSAGES = "messages"
    """Anthropic's."""
    SCORE = "score"
    """Scores and reranking."""
    SGLANG = "sglang"
    """SGLang's own generation; its body names no model."""
    MODEL_CALL = "model-call"
    """A gRPC call about one model (ready, metadata, config, statistics), named in its body; never
    priced."""
    OTHER = "other"
    """Health, metadata and other non-inference requests; never priced."""


_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})
GRPC_STREAM: Final = Form.GRPC_STREAM  # see `exchange.machine`
MODEL_CALL: Final = Form.MODEL_CALL
OPENAI: Final = Form.OPENAI
NAMES_ADAPTER: Final = frozenset({Form.OPENAI, Form.RESPONSES, Form.MESSAGES, Form.SCORE})
"""Forms whose body names the model, possibly with an adapter."""
OTHER: Final = Form.OTHER


HIGH, LOW = 0, 1
"""The bands: requests of `LOW` leave only if none of `HIGH` can."""
LOWERED: Final = 2
"""Least priority of the band `LOW`."""


def band_of(priority: int | None) -> int:
    """Return the band of a request by its priority, in Triton's sense: 1 is the highest.

    Without a priority (``None``, or 0: the model's default) a request is in the band `HIGH`: what a
    caller says of itself can only lower it.
    """
    return LOW if priority is not None and priority >= LOWERED else HIGH


class Truncation(NamedTuple):
    """What a request lets its engine keep of a prompt (vLLM's ``truncate_prompt_tokens``)."""

    tokens: int
    """Maximum number of tokens, at least 1."""
    left: bool
    """The beginning is dropped, else the end."""
    whole: bool
    """Special tokens are dropped like others; else they stay, and count."""


class Features(Plain):
    """The features read from a request's head and body, as far as the body was read."""

    __slots__ = (
        "adapter",
        "chat",
        "cut",
        "form",
        "inflated_bytes",
        "max_tokens",
        "model",
        "plain_text",
        "pool",
        "priority",
        "prompt",
        "prompt_is_partial",
        "recomputed",
        "request_id",
        "salt",
        "sequence_end",
        "sequence_id",
        "sequence_start",
        "session",
        "spans",
        "streaming",
        "tensor_bytes",
        "timeout_s",
        "token_ids",
        "truncation",
        "version",
    )

    def __init__(
        self,
        form: Form,
        pool: str | None = None,
        model: str | None = None,
        version: str | None = None,
        request_id: str | None = None,
        sequence_id: int | str | None = None,
        sequence_start: bool = False,
        sequence_end: bool = False,
        session: str | None = None,
        adapter: str | None = None,
        salt: str | None = None,
        priority: int | None = None,
        timeout_s: float | None = None,
        streaming: bool = False,
        max_tokens: int | None = None,
        prompt: bytes | None = None,
        prompt_is_partial: bool = False,
        token_ids: bool = False,
        tensor_bytes: int | None = None,
        inflated_bytes: int | None = None,
        plain_text: bool = False,
        truncation: Truncation | None = None,
        chat: Mapping[str, Any] | None = None,
        cut: bool = False,
        recomputed: bool = False,
        spans: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.form = form
        self.pool = pool
        """The pool that a header names."""
        self.model = model
        self.version = version
        self.request_id = request_id
        self.sequence_id = sequence_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.session = session
        self.adapter = adapter
        """The LoRA adapter, by name or number."""
        self.salt = salt
        """Separates the caches of tenants (vLLM's ``cache_salt``)."""
        self.priority = priority
        self.timeout_s = timeout_s
        self.streaming = streaming
        self.max_tokens = max_tokens
        self.prompt = prompt
        """Canonical prompt bytes: UTF-8 text or little-endian token ids; possibly only a
        prefix."""
        self.prompt_is_partial = prompt_is_partial
        self.token_ids = token_ids
        """``prompt`` holds token ids of 32 bits each instead of text."""
        self.tensor_bytes = tensor_bytes
        """Bytes that the shape of the largest input declares."""
        self.inflated_bytes = inflated_bytes
        """Bytes to which a replica would inflate the body at most; ``None`` = not compressed."""
        self.plain_text = plain_text
        """The engine adds no special tokens to a text (vLLM's ``add_special_tokens: false``)."""
        self.truncation = truncation
        self.chat = chat
        """Members of the body of a chat that was read whole, until its tokens are known."""
        self.cut = cut
        """The replica may see what was not read: the JSON or the message goes on beyond a bound."""
        self.recomputed = recomputed
        """The engine computes the whole prompt, whatever its cache holds (vLLM's
        ``prompt_logprobs``)."""
        self.spans = spans
        """Begin and end in ``prompt`` of each prompt of a batch; empty = it is one prompt."""

    @property
    def is_inference(self) -> bool:
        """Whether the request is inference, i.e. work for the replica."""
        return self.form is not OTHER and self.form is not MODEL_CALL

    @property
    def sequence(self) -> SequenceKey | None:
        """Identity of the sequence, ``None`` for a stateless request."""
        if self.sequence_id is None:
            return None
        return SequenceKey(self.model or "", self.version or "", self.sequence_id)


class Care(NamedTuple):
    """How a request is routed while any is suspected of the death of a replica."""

    fingerprint: bytes
    suspected: bool = False
    """It was on a replica that died."""
    member: bool = False
    """Several died of such requests: one replica may read it, and no other one after that."""
    avoid: frozenset[str] = frozenset()
    """Ids of endpoints that must not get it."""
    only: frozenset[str] | None = None
    """Ids of the endpoints that alone may get it; ``None`` = any."""
    kinds: tuple[bytes, ...] = ()
    """Kinds of suspects that its body is alike (``blame.alike``)."""


class Request(Plain):
    """The input of one decision.

    Args:
        pool: The pool's name.
        variant: The variant already drawn (by Envoy's route or a pin); ``None`` = the router draws
            it.
        protocol: The protocol between Envoy and the replica.
        features: The features of the request.
        blocks: Chained hashes of the prompt's full blocks, root first; signed 64-bit integers.
        block_tokens: Tokens per block; ``None`` = estimated from the pool's ``block_chars``.
        tokens: Tokens of the whole prompt; ``None`` = estimated from its length.
        bytes_per_token: Bytes of the prompt for each token, where they are not counted.
        batch: Of a batch of prompts the blocks of each; ``blocks`` are then all of them, once each.
        chat: ``tokens`` are exactly those of a chat, so its engine must count as many.
        subset: ``ip:port`` or bare ``ip`` entries that limit the choice; ``None`` = no limit.
        headers: Request headers by lower-case name, read for the header pins of variants.
        body: The whole body as sent; ``None`` = not read, or not to its end.
        repeatable: Whether the proxy can send the request again.
        care: Set by the router; ``None`` = no request is suspected, or this one has no fingerprint.
        client: The client that sent it: the name in its certificate, else its address as /32 or
            /64; ``None`` = unknown. At most ``ext_proc.server.wire.MAX_NAME`` characters.
        limited: Whether the limits count that replicas have by themselves (``Pool.limit``); not
            where a request cannot wait for room, which it is not to be refused for.
    """

    __slots__ = (
        "batch",
        "block_tokens",
        "blocks",
        "body",
        "bytes_per_token",
        "care",
        "chat",
        "client",
        "features",
        "headers",
        "limited",
        "pool",
        "protocol",
        "repeatable",
        "subset",
        "tokens",
        "variant",
    )

    def __init__(
        self,
        pool: str,
        variant: str | None,
        protocol: Protocol,
        features: Features,
        blocks: tuple[int, ...] = (),
        block_tokens: float | None = None,
        tokens: int | None = None,
        subset: frozenset[str] | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
        body: bytes | None = None,
        repeatable: bool = True,
        care: Care | None = None,
        client: str | None = None,
        bytes_per_token: float = BYTES_PER_TOKEN,
        chat: bool = False,
        batch: tuple[tuple[int, ...], ...] = (),
        limited: bool = True,
    ) -> None:
        self.chat = chat
        self.limited = limited
        self.pool = pool
        self.variant = variant
        self.protocol = protocol
        self.features = features
        self.blocks = blocks
        self.block_tokens = block_tokens
        self.tokens = tokens
        self.subset = subset
        self.headers = headers
        self.body = body
        self.repeatable = repeatable
        self.care = care
        self.client = client
        self.bytes_per_token = bytes_per_token
        self.batch = batch
