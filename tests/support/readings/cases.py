"""One request of the differential fuzzer, and how large its harmful parts are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MODEL: Final = "echo"
GRPC_INFER: Final = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True, slots=True)
class Scale:
    """What stands for a harmful size: generated once harmless and once deadly, else equal."""

    elements: int
    """Elements of a tensor, all of whose memory Triton reserves."""
    wrap: int
    """Elements whose size in bytes wraps around at 2**64, for elements of 4 bytes."""
    side: int
    """A dimension whose square overflows 64 bits."""
    half: int
    """A dimension that overflows 63 bits with ``side``."""
    depth: int
    """Levels of nested arrays."""


HARMLESS: Final = Scale(2**10, 2**12, 8, 4, 40)
DEADLY: Final = Scale(2**40, 2**62, 2**32, 2**31, 100_000)


@dataclass(frozen=True, slots=True)
class Case:
    """A request as Envoy would pass it on."""

    path: str
    headers: tuple[tuple[str, str], ...]
    """Beside those of the protocol; names in lower case."""
    body: bytes
    """Over gRPC with its frame."""
    chunked: bool = False
    """Over HTTP/1.1: sent in chunks, without a Content-Length."""

    @property
    def is_grpc(self) -> bool:
        """Whether it is a gRPC call."""
        return self.path == GRPC_INFER

    def changed(self, body: bytes) -> Case:
        """Return the request with another body."""
        return Case(self.path, self.headers, body, self.chunked)

    def __str__(self) -> str:
        body = repr(self.body) if len(self.body) <= 3000 else f"{self.body[:3000]!r}…"
        return f"POST {self.path} {list(self.headers)}{' chunked' * self.chunked}\n  {body}"
