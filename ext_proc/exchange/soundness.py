"""Which requests a pool refuses, by what was read of them anyway.

Rules:

1. With ``routing.unsound_requests: refuse`` (the default), a request is refused whose declared
   shapes contradict its data or exceed ``routing.max_tensor_bytes``, or whose JSON nests too
   deeply: each could end a replica. So is a request of Triton's forms whose body cannot be read by
   Triton's rules: what it may do there is not known. Otherwise it is routed as a request that
   cannot be read.
2. A request that asks for more than ``routing.max_tokens`` tokens is refused.
3. A KServe request over HTTP is refused whose headers are longer than
   ``routing.max_header_bytes``: Triton closes the connection instead of answering, which looks like
   a failed replica.
4. A compressed body that a Triton would inflate to more than ``routing.max_inflated_bytes`` is
   refused. Beyond the part that was read every byte counts as inflated as far as can be.
5. What was not read is not judged: nothing with ``routing.body: none``, of a body that was read in
   part only what that part says, and of tensors that a model will produce nothing at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.requests import Malformed, UnsoundRequest
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from ext_proc.routing.values.request import Form

if TYPE_CHECKING:
    from ext_proc.exchange.messages import Head
    from ext_proc.requests import BadRequest
    from ext_proc.routing.values.pool import Pool
    from ext_proc.routing.values.request import Features

REFUSE: Final = "refuse"
TRITONS: Final = frozenset(
    {
        Form.GRPC_INFER,
        Form.GRPC_STREAM,
        Form.HTTP_INFER,
        Form.GENERATE,
        Form.GENERATE_STREAM,
    }
)
"""Forms of inference that Triton serves, which dies of some bodies."""
_TRITON: Final = "/v2"
"""How the paths of KServe's HTTP protocol begin."""


def judge(features: Features, pool: Pool | None, error: BadRequest | None) -> Refusal | None:
    """Return the refusal of an unsound request, ``None`` if it may be routed.

    Args:
        features: What was read of the request.
        pool: Its pool; ``None`` if only the body could have named it.
        error: Why the body could not be read; ``None`` if it was.
    """
    size = features.inflated_bytes
    if size is not None and pool is not None and 0 < pool.max_inflated_bytes < size:
        return Refusal(
            RefusalKind.TOO_LARGE,
            "the body is compressed and may inflate to more than the"
            f" {pool.max_inflated_bytes} bytes that pool {pool.name!r} takes"
            " (routing.max_inflated_bytes); send it uncompressed, or less at a time",
        )
    if pool is None or pool.unsound_requests == REFUSE:
        harmful = _judge_harm(features, pool, error)
        if harmful is not None:
            return harmful
    if pool is None:
        if error is None:
            return None
        malformed = isinstance(error, Malformed)
        return Refusal(RefusalKind.BAD_REQUEST, error.message, malformed)
    tokens = features.max_tokens
    if pool.max_tokens and tokens is not None and tokens > pool.max_tokens:
        return Refusal(
            RefusalKind.TOO_MANY_TOKENS,
            f"the request asks for {tokens} tokens; pool {pool.name!r} allows at most"
            f" {pool.max_tokens} (routing.max_tokens)",
        )
    return None


def _judge_harm(features: Features, pool: Pool | None, error: BadRequest | None) -> Refusal | None:
    if isinstance(error, UnsoundRequest):
        return Refusal(error.kind, error.message)
    if isinstance(error, Malformed) and features.form in TRITONS:
        return Refusal(RefusalKind.BAD_REQUEST, error.message, malformed=True)
    size = features.tensor_bytes
    if size is None or pool is None or size <= pool.max_tensor_bytes:
        return None
    return Refusal(
        RefusalKind.BAD_SHAPE,
        f"an input declares {size} bytes; pool {pool.name!r} takes at most"
        f" {pool.max_tensor_bytes} (routing.max_tensor_bytes)",
    )


def judge_headers(head: Head, pool: Pool) -> Refusal | None:
    """Return the refusal of a request whose headers are too long for its replica.

    Args:
        head: The request's headers, whose length is known.
        pool: Its pool.
    """
    size, most = head.header_bytes, pool.max_header_bytes
    if size is None or not most or size <= most or not head.path.startswith(_TRITON):
        return None
    return Refusal(
        RefusalKind.HEADERS_TOO_LARGE,
        f"the headers have about {size} bytes; pool {pool.name!r} takes at most {most}"
        " (routing.max_header_bytes)",
    )
