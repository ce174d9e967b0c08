"""One request with a mistake, as clients send them to a Triton that serves the project's models."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from support.streams import GRPC_INFER

if TYPE_CHECKING:
    from collections.abc import Mapping

INFER: Final = "/v2/models/counter/infer"
VISION: Final = "/v2/models/vision/infer"
MIRROR: Final = "/v2/models/mirror/infer"
GENERATE: Final = "/v2/models/toy-llm/generate"
STREAM: Final = "/v2/models/toy-llm/generate_stream"
LENGTH: Final = "Inference-Header-Content-Length"
DEEP: Final = "DEEP {}"
"""Mark of an array of arrays; see ``deepened``."""
HUGE: Final = 2**40
"""Elements of a tensor for which no machine has the memory."""
ONE: Final = struct.pack("<i", 1)


@dataclass(frozen=True, slots=True)
class Mistake:
    """One request."""

    name: str
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_grpc(self) -> bool:
        """Whether it is a gRPC call; ``body`` is then a message without its frame."""
        return self.path == GRPC_INFER

    def recorded(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the request ready for JSON; ``body`` is its body, packed."""
        return {"name": self.name, "path": self.path, "headers": dict(self.headers), "body": body}


def deepened(text: bytes) -> bytes:
    """Put an array of arrays, as deep as said, into the place of each mark."""
    return re.sub(
        rb'"DEEP (\d+)"', lambda found: b"[" * int(found[1]) + b'"a"' + b"]" * int(found[1]), text
    )
