"""Whether Envoy may lose the end of a body.

Envoy 1.40 (and before) sends the picker the first part of a body, and holds what follows. If
nothing follows but the end, without a byte, Envoy forgets it, and the replica waits until
``timeouts.idle``. So it is with a chunked HTTP/1.1 body that crosses Envoy's buffer in the read
that also has the last chunk. Such a part is the whole body, and no length was declared: it is
refused with a reason rather than left to hang. A body that is not known to be whole goes on.

Source: ``source/extensions/filters/http/ext_proc/processor_state.cc``, where what is left is
injected only if it has bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from ext_proc.requests.forms.http_infer import LENGTH_HEADER
from ext_proc.routing.values.refusal import Refusal, RefusalKind
from tidegate_api.pools import LEAST_PEEK_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ext_proc.exchange.events import Body

LOST_END: Final = Refusal(
    RefusalKind.LENGTH_REQUIRED,
    "the proxy may lose the end of this body, which has no declared length and just exceeds its"
    " buffer; send it with a content-length",
)
_MAX_BYTES: Final = 256 * 2**10
"""Longer parts have crossed the buffer before their last read."""


def loses_end(headers: Mapping[str, str], body: Body) -> bool:
    """Return whether a first part is all of a body without a declared length.

    One that Envoy's buffer holds was not cut: trailers end it.

    Args:
        headers: Headers of the request by lower-case name.
        body: What the proxy sent of its body.
    """
    if body.end_of_stream or "content-length" in headers:
        return False
    return LEAST_PEEK_BYTES < len(body.chunk) <= _MAX_BYTES and _is_whole(headers, body.chunk)


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
