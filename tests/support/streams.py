"""Builders for tests of the picker: pools, Envoy's messages, and parsed replies."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from tritonclient.grpc import service_pb2

from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from tidegate_api.names import (
    DESTINATION_HEADER,
    LB_NAMESPACE,
    REPEATABLE,
    REPEATABLE_HEADER,
    SUBSET_KEY,
    SUBSET_NAMESPACE,
)

MODE = processing_mode_pb2.ProcessingMode
INFER_PATH = "/v2/models/toy-llm/generate"
CHAT_PATH = "/v1/chat/completions"
GRPC_INFER = "/inference.GRPCInferenceService/ModelInfer"
GRPC_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
GRPC_LIVE = "/inference.GRPCInferenceService/ServerLive"
PROMPT = {"text_input": "tell me about tides " * 60}
"""A body with a prompt of four blocks."""


def replicas(count: int, variant: str = "stable", base: int = 1) -> tuple[Endpoint, ...]:
    """Return endpoints 10.0.0.N: HTTP on port 8080, gRPC on port 8081."""
    return tuple(
        Endpoint(
            EndpointKey(f"r{number}", 1),
            variant,
            http=f"10.0.0.{number}:8080",
            grpc=f"10.0.0.{number}:8081",
        )
        for number in range(base, base + count)
    )


def llm(**changes: Any) -> Pool:
    """Return a pool with three stable replicas and one canary."""
    values: dict[str, Any] = {
        "name": "llm",
        "models": frozenset({"toy-llm"}),
        "paths": frozenset({CHAT_PATH}),
        "default_for_grpc": True,
        "default_for_paths": frozenset({CHAT_PATH}),
        "variants": (
            Variant("stable", 1),
            Variant("canary", 0, headers=(("x-variant", "canary"),)),
        ),
        "endpoints": replicas(3) + replicas(1, "canary", base=9),
    }
    return Pool(**{**values, **changes})


def vision(**changes: Any) -> Pool:
    """Return a second pool with one replica."""
    values: dict[str, Any] = {
        "name": "vision",
        "models": frozenset({"vision"}),
        "paths": frozenset({CHAT_PATH}),
        "variants": (Variant("stable", 1),),
        "endpoints": replicas(1, base=20),
    }
    return Pool(**{**values, **changes})


def router(*pools: Pool) -> Router:
    """Return a seeded router with these pools."""
    made = Router(random.Random(1))
    made.set_pools({pool.name: pool for pool in pools}, 0.0)
    return made


def frame(model: str, *, sequence: int | None = None, tensor: int = 0) -> bytes:
    """Return a framed ``ModelInferRequest`` with ``tensor`` bytes of tensor data."""
    message = service_pb2.ModelInferRequest(model_name=model)
    if sequence is not None:
        message.parameters["sequence_id"].int64_param = sequence
    if tensor:
        message.inputs.add(name="image", datatype="UINT8", shape=[tensor])
        message.raw_input_contents.append(bytes(tensor))
    content = message.SerializeToString()
    return b"\0" + len(content).to_bytes(4, "big") + content


@dataclass
class Messages:
    """Builds the messages of one stream, in order."""

    cluster: str | None = "llm/stable/http"
    route: str | None = "llm/http"
    mode: int | None = MODE.NONE
    source: str | None = "192.0.2.1:40000"
    protocol: str | None = "HTTP/1.1"
    gated: bool = True
    """Whether a proxy that the control server configured sends its mark of requests."""
    made: list[Any] = field(default_factory=list)

    def head(
        self,
        path: str = INFER_PATH,
        method: str = "POST",
        headers: dict[str, str] | None = None,
        *,
        end: bool = False,
        subset: Any = None,
    ) -> Messages:
        """Add the request headers."""
        message = pb.ProcessingRequest()
        part = message.request_headers
        part.end_of_stream = end
        every = {":method": method, ":path": path, **(headers or {})}
        if self.gated and self.cluster is not None:
            every[REPEATABLE_HEADER] = REPEATABLE
        for name, value in every.items():
            part.headers.headers.add(key=name, raw_value=value.encode())
        fields = message.attributes["envoy.filters.http.ext_proc"].fields
        if self.cluster is not None:
            fields["xds.cluster_name"].string_value = self.cluster
        if self.route is not None:
            fields["xds.route_name"].string_value = self.route
        if self.source is not None:
            fields["source.address"].string_value = self.source
        if self.protocol is not None:
            fields["request.protocol"].string_value = self.protocol
        if self.mode is not None:
            message.protocol_config.request_body_mode = self.mode
        return self._add(message, subset)

    def body(self, content: Any, *, end: bool = True, subset: Any = None) -> Messages:
        """Add a chunk of the body; content other than bytes is encoded as JSON."""
        message = pb.ProcessingRequest()
        message.request_body.body = (
            content if isinstance(content, bytes) else json.dumps(content).encode()
        )
        message.request_body.end_of_stream = end
        return self._add(message, subset)

    def trailers(self) -> Messages:
        """Add the request trailers."""
        return self._add(pb.ProcessingRequest(request_trailers=pb.HttpTrailers()), None)

    def response(
        self,
        part: str = "headers",
        body: bytes = b"",
        *,
        end: bool = False,
        served: Any = None,
        headers: dict[str, str] | None = None,
    ) -> Messages:
        """Add a part of the response; ``served`` is its ``envoy.lb`` metadata."""
        message = pb.ProcessingRequest()
        getattr(message, f"response_{part}").SetInParent()
        if part == "body":
            message.response_body.body = body
            message.response_body.end_of_stream = end
        for name, value in (headers or {}).items():
            message.response_headers.headers.headers.add(key=name, raw_value=value.encode())
        if served is not None:
            message.metadata_context.filter_metadata[LB_NAMESPACE].update(served)
        return self._add(message, None)

    def bytes(self) -> list[bytes]:
        """Return the serialized messages."""
        return [message.SerializeToString() for message in self.made]

    def _add(self, message: Any, subset: Any) -> Messages:
        if subset is not None:
            space = message.metadata_context.filter_metadata[SUBSET_NAMESPACE]
            space.update(subset if isinstance(subset, dict) else {SUBSET_KEY: subset})
        self.made.append(message)
        return self


@dataclass
class Answer:
    """One parsed reply of the picker."""

    message: Any

    @classmethod
    def of(cls, data: bytes) -> Answer:
        """Parse a reply."""
        return cls(pb.ProcessingResponse.FromString(data))

    @property
    def kind(self) -> str:
        """Kind of the answered message, or ``immediate_response``."""
        return str(self.message.WhichOneof("response"))

    @property
    def common(self) -> Any:
        """The ``CommonResponse`` of the reply."""
        return getattr(self.message, self.kind).response

    @property
    def headers(self) -> dict[str, str]:
        """Headers set by the reply."""
        mutation = (
            self.message.immediate_response.headers
            if self.kind == "immediate_response"
            else self.common.header_mutation
        )
        return {item.header.key: item.header.raw_value.decode() for item in mutation.set_headers}

    @property
    def picked(self) -> list[str] | None:
        """Picked addresses, equal in header and metadata; ``None`` without a pick."""
        if DESTINATION_HEADER not in self.headers:
            assert not self.message.HasField("dynamic_metadata")
            return None
        header = self.headers[DESTINATION_HEADER]
        assert self.message.dynamic_metadata[LB_NAMESPACE][DESTINATION_HEADER] == header
        return header.split(",")

    @property
    def status(self) -> int:
        """Status of a refusal."""
        assert self.kind == "immediate_response"
        return int(self.message.immediate_response.status.code)

    @property
    def reason(self) -> str:
        """Reason of a refusal."""
        return self.headers["x-tidegate-reason"]
