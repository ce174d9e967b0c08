"""HTTP filters whose settings Envoy asks for by name (ECDS).

A changed listener drains its connections; changed settings of such a filter apply to the next
request of the same connections. Rules:

1. The listener names such a filter and its type, never its settings, so that it does not change
   with them. The settings have the name of the filter.
2. There is no default: a new listener waits, however long, until Envoy has the settings, and the
   listener before it serves meanwhile. No request passes a filter without its settings.
3. Routes enable, disable and override such a filter by its name, as any other.
4. Headers that clients may not send are removed by a filter too, after Envoy has matched a route.
   So no route may match by them: ``admitted`` leaves out the variants' pins that name them.

Source: ``envoy/config/core/v3/extension.proto``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import (
    HeaderMutation,
    HeaderMutationRules,
)
from envoy_data_plane.envoy.config.core.v3 import (
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    ExternalProcessorRouteCacheAction,
    HeaderForwardingRules,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import (
    HeaderMutation as MutationFilter,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import Mutations
from envoy_data_plane.envoy.type.matcher.v3 import ListStringMatcher, StringMatcher
from envoy_data_plane.envoy.type.v3 import HttpStatus, StatusCode

from tidegate_api.names import (
    AGAIN_HEADER,
    CERTIFICATE_ATTRIBUTES,
    CLUSTER_ATTRIBUTE,
    HEADERS_ATTRIBUTE,
    LB_NAMESPACE,
    LOAD_BIN_HEADER,
    LOAD_HEADER,
    OBJECTIVE_HEADER,
    PICKER_CLUSTER,
    PICKER_FILTER,
    PROTOCOL_ATTRIBUTE,
    REPEATABLE,
    REPEATABLE_HEADER,
    ROUTE_ATTRIBUTE,
    SOURCE_ATTRIBUTE,
    STRIP_FILTER,
    SUBSET_NAMESPACE,
    TIDEGATE_NAMESPACE,
)
from tidegate_api.pools import MAX_WAIT_S
from xds_server.fleet.model.fleet import VariantMatch
from xds_server.fleet.rules.edge import choosing_headers
from xds_server.resources.edge.filters import edge_settings
from xds_server.resources.edge.operators import own_settings
from xds_server.resources.sources import discovered, extension

if TYPE_CHECKING:
    from collections.abc import Mapping

    from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
        HttpFilter,
    )

    from xds_server.fleet.model.fleet import Fleet, PoolSpec

LONGEST_ANSWER_S = MAX_WAIT_S + 1.0
"""Seconds after which a picker answers at the latest."""

_FORWARDED_HEADERS = (
    ":method",
    ":path",
    "content-type",
    "content-length",
    "content-encoding",
    "grpc-encoding",
    "grpc-timeout",
    "inference-header-content-length",
    "x-request-id",
    "traceparent",
    "tracestate",
    OBJECTIVE_HEADER,
    REPEATABLE_HEADER,
    AGAIN_HEADER,
    # On responses, for pools that request load reports.
    LOAD_HEADER,
    LOAD_BIN_HEADER,
)
"""Headers sent to the picker, beside `tidegate-*`, session and variant headers. Credentials are
never sent."""


_OVERRIDES = [
    ProcessingMode(
        request_header_mode=ProcessingModeHeaderSendMode.SEND,
        request_body_mode=body,
        request_trailer_mode=ProcessingModeHeaderSendMode.SKIP,
        response_header_mode=head,
        response_trailer_mode=trailers,
    )
    for body, trailers in (
        (ProcessingModeBodySendMode.BUFFERED_PARTIAL, ProcessingModeHeaderSendMode.SKIP),
        (ProcessingModeBodySendMode.NONE, ProcessingModeHeaderSendMode.SEND),
    )
    for head in (ProcessingModeHeaderSendMode.SKIP, ProcessingModeHeaderSendMode.SEND)
]
"""What a picker may ask for in its reply to the headers."""


def strip_filter() -> HttpFilter:
    """Return the listener's filter that removes headers that clients may not send."""
    return discovered(STRIP_FILTER, MutationFilter())


def picker_filter() -> HttpFilter:
    """Return the listener's filter that asks the pickers."""
    return discovered(PICKER_FILTER, ExternalProcessor())


def extensions(fleet: Fleet, retiring: Fleet | None = None) -> Mapping[str, bytes]:
    """Return the settings of all these filters: name -> serialized ``TypedExtensionConfig``.

    Args:
        fleet: The fleet whose settings are in force.
        retiring: The previous fleet: what its routes ask of the filters remains.
    """
    settings = {
        STRIP_FILTER: _strip(fleet),
        PICKER_FILTER: _external_processor(fleet),
        **edge_settings(fleet, retiring),
    }
    found = {name: bytes(extension(name, config)) for name, config in settings.items()}
    return {**found, **own_settings(fleet.listener.http_filters)}


def refused_headers(fleet: Fleet) -> list[str]:
    """Return the headers that choose and that clients may not send, sorted."""
    return sorted(name for name in choosing_headers(fleet) if not fleet.listener.takes(name))


def admitted(fleet: Fleet) -> Fleet:
    """Return the fleet without pins by headers that clients may not send."""
    if all(fleet.listener.takes(name) for pool in fleet.pools for name in _pinning(pool)):
        return fleet
    return fleet.model_copy(
        update={
            "pools": tuple(
                pool.model_copy(
                    update={
                        "variants": tuple(
                            variant
                            if all(map(fleet.listener.takes, variant.match.headers))
                            else variant.model_copy(update={"match": VariantMatch()})
                            for variant in pool.variants
                        )
                    }
                )
                for pool in fleet.pools
            )
        }
    )


def forwarded_headers(fleet: Fleet) -> list[str]:
    """Return the names of all session, timeout and variant headers of the fleet, sorted."""
    names = {pool.routing.session_header for pool in fleet.pools}
    names.update(name for pool in fleet.pools if (name := pool.routing.timeout_header))
    return sorted(names.union(*map(_pinning, fleet.pools)))


def _pinning(pool: PoolSpec) -> set[str]:
    return {name for variant in pool.variants for name in variant.match.headers}


def _strip(fleet: Fleet) -> MutationFilter:
    removed = [HeaderMutation(remove=name) for name in refused_headers(fleet)]
    # The picker closes what this opens. So it does where there is no picker, or it says nothing.
    repeatable = HeaderMutation(
        append=HeaderValueOption(
            header=HeaderValue(key=REPEATABLE_HEADER, value=REPEATABLE),
            append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
        )
    )
    return MutationFilter(mutations=Mutations(request_mutations=[*removed, repeatable]))


def _attributes(fleet: Fleet) -> list[str]:
    """Return what the picker is told of a request beside its headers."""
    every = (fleet.listener.tls, *(each.tls for each in fleet.listener.further))
    asked = any(tls is not None and tls.client_ca is not None for tls in every)
    certificate = CERTIFICATE_ATTRIBUTES if asked else ()
    usual = (CLUSTER_ATTRIBUTE, ROUTE_ATTRIBUTE, HEADERS_ATTRIBUTE, PROTOCOL_ATTRIBUTE)
    return [*usual, SOURCE_ATTRIBUTE, *certificate]


def _external_processor(fleet: Fleet) -> ExternalProcessor:
    names = (*_FORWARDED_HEADERS, *forwarded_headers(fleet))
    allowed = [StringMatcher(exact=name) for name in names]
    allowed.append(StringMatcher(prefix="tidegate-"))
    return ExternalProcessor(
        grpc_service=GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=PICKER_CLUSTER)),
        failure_mode_allow=fleet.pickers.fail_open,
        # Where it is closed: not 500, after which clients do not come again.
        status_on_error=HttpStatus(code=StatusCode.ServiceUnavailable),
        message_timeout=timedelta(seconds=fleet.pickers.timeout),
        # What a picker may ask for while a request waits for a replica.
        max_message_timeout=timedelta(seconds=max(fleet.pickers.timeout, LONGEST_ANSWER_S)),
        processing_mode=ProcessingMode(
            request_header_mode=ProcessingModeHeaderSendMode.SEND,
            response_header_mode=ProcessingModeHeaderSendMode.SKIP,
            request_body_mode=ProcessingModeBodySendMode.NONE,
        ),
        # The picker requests the first part of a body only if it needs it (body-mode override).
        allow_mode_override=True,
        # Pickers that do not know `REPEATABLE_HEADER` ask for bodies with another mode.
        allowed_override_modes=_OVERRIDES,
        # Cleared only if the picker has chosen pool or variant; clearing it always would draw the
        # variant again.
        route_cache_action=ExternalProcessorRouteCacheAction.DEFAULT,
        request_attributes=_attributes(fleet),
        forward_rules=HeaderForwardingRules(allowed_headers=ListStringMatcher(patterns=allowed)),
        # Requests of a sequence must not be retried on another replica: x-envoy-max-retries.
        mutation_rules=HeaderMutationRules(allow_envoy=True),
        metadata_options=MetadataOptions(
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[LB_NAMESPACE, SUBSET_NAMESPACE]
            ),
            receiving_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[LB_NAMESPACE, TIDEGATE_NAMESPACE]
            ),
        ),
    )
