"""The words that cross the wire: header names, metadata keys, cluster and resource names.

Both services and the command line use these; nothing else is shared between the services.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

# --- Headers a client may send (documented in docs/reference/requests.md) -----------------------

POOL_HEADER: Final = "tidegate-pool"
"""Names the pool outright; Envoy matches it, so it works without reading a body."""

MODEL_HEADER: Final = "tidegate-model"
"""Names the model where the path does not (gRPC streaming, OpenAI paths)."""

POLICY_HEADER: Final = "tidegate-policy"
"""Asks for another policy for this request; the pool must allow it."""

SESSION_HEADER: Final = "x-session-id"
"""Default header that names a session; each pool may choose another."""

SEQUENCE_HEADER: Final = "tidegate-sequence-id"
"""Names the sequence where no body is read (ModelStreamInfer)."""

TIMEOUT_HEADER: Final = "tidegate-timeout-ms"
"""How long the caller waits for the answer, in milliseconds."""

REQUEST_ID_HEADER: Final = "x-request-id"
"""Names the request where its body does not; Envoy sets it where the client did not."""

OBJECTIVE_HEADER: Final = "x-gateway-inference-objective"
"""The InferenceObjective of the request, by its name."""

ENDPOINT_HEADER: Final = "tidegate-endpoint"
"""Of questions that the gateway answers: the one replica to ask, by its endpoint id."""

# --- Load reports (ORCA): asked of replicas, and in their answers -------------------------------

LOAD_FORMAT_HEADER: Final = "endpoint-load-metrics-format"
"""On requests: asks the replica for a load report in its answer's headers."""

LOAD_HEADER: Final = "endpoint-load-metrics"
"""On answers: the report, as JSON, text or base64."""

LOAD_BIN_HEADER: Final = "endpoint-load-metrics-bin"
"""On answers: the report, as a serialized protobuf message in base64."""

# --- Headers of answers -------------------------------------------------------------------------

REASON_HEADER: Final = "x-tidegate-reason"
"""On refusals: the machine-readable reason."""

SERVED_BY_HEADER: Final = "x-tidegate-served-by"
"""Response header with the upstream's address, where the listener has ``debug_headers``."""

REPLICAS_HEADER: Final = "x-tidegate-replicas"
"""On the gateway's answers: how many of the asked replicas the answer is made of, then each other
one with a word: ``2/3; r3=timeout``."""

# --- Control headers: set by the picker, stripped from every client request by Envoy ------------

CONTROL_POOL_HEADER: Final = "x-tidegate-pool"
"""The pool that the picker found in the body; Envoy matches the route again by it."""

CONTROL_VARIANT_HEADER: Final = "x-tidegate-variant"
"""The variant that the picker drew, or that a sequence's lease demands."""

CONTROL_CLUSTER_HEADER: Final = "x-tidegate-cluster"
"""Of a generic proxy's requests: the control server's name for the pick's cluster,
``pool/variant/protocol``, which a route may follow (``cluster_header``)."""

CONTROL_MODEL_HEADER: Final = "x-tidegate-model"
"""The model that Envoy itself read from a body; Envoy matches the route again by it."""

UNPICKED_HEADER: Final = "x-tidegate-unpicked"
"""Set by Envoy on requests without a pick whose model it is about to read from the body."""

ASKED_HEADER: Final = "x-tidegate-asked"
"""Set by Envoy where it reads a body ahead of the picker: milliseconds since a request began."""

WAITED_HEADER: Final = "x-tidegate-waited"
"""Set by Envoy behind the picker on requests without a pick: milliseconds since they began."""

DESTINATION_HEADER: Final = "x-gateway-destination-endpoint"
"""The pick and its fallbacks, ``ip:port`` separated by commas; also the metadata key by which
Envoy sends the request."""

DESTINATION_SERVED_KEY: Final = "x-gateway-destination-endpoint-served"
"""Metadata key of the replica that really served the request."""

SUBSET_KEY: Final = "x-gateway-destination-endpoint-subset"
"""Metadata key of the replicas to which a request is restricted."""

MAX_RETRIES_HEADER: Final = "x-envoy-max-retries"
"""Set to 0 on requests that Envoy must not retry."""

READS_HEADER: Final = "x-tidegate-reads"
"""Number of further replicas that may read the request after one broke off; set to 0 on the first
request of a sequence, and on one that several replicas died with. Without it the pool's
`routing.retry_read` counts."""

REPEATABLE_HEADER: Final = "x-tidegate-repeatable"
"""`1` on requests whose end is known: the retry policies of Envoy's routes hold for no other. Envoy
sets it, the picker sets it to 0 while the end of a body is not known."""

RETRY_ON_HEADER: Final = "x-envoy-retry-on"
"""Set by the picker on requests whose model another replica has too: with `retriable-headers`
Envoy repeats them once where a replica answers 404 or NOT_FOUND."""

MISSING_HEADER: Final = "x-tidegate-missing"
"""Set by the picker with that header, for Envoy's filter of attempts, which does not see it."""

AGAIN_HEADER: Final = "x-tidegate-again"
"""On a picker's answer about a request on a hung replica: Envoy takes the request through its
filters once more, for another replica. Envoy sets it on such a request, and the picker reads it."""

UNTIL_HEADER: Final = "x-tidegate-until"
"""Set by the picker on requests with a deadline in a header: when it is, in Unix milliseconds. Of a
request that leaves a hung replica Envoy makes its deadlines anew by it."""

SENT_HEADER: Final = "x-tidegate-sent"
"""Bytes sent to and received from replicas so far; Envoy sets and removes it on retries."""

ATTEMPT_HEADER: Final = "x-envoy-attempt-count"
"""Number of the attempt; Envoy sets it on what it sends to replicas."""

TICKET_HEADER: Final = "x-tidegate-ticket"
"""``ticket;picker;at;slot`` of the pick, as in the metadata ``tidegate``: the log entries of single
attempts carry headers, but no metadata."""

TRY_TIMEOUT_HEADER: Final = "x-envoy-upstream-rq-per-try-timeout-ms"
"""Time to the headers of an answer after which Envoy tries another replica, milliseconds."""

REQUEST_TIMEOUT_HEADER: Final = "x-envoy-upstream-rq-timeout-ms"
"""Time to the end of the answer after which Envoy ends a request, milliseconds: the rest of the
caller's `tidegate-timeout-ms`."""

IN_SIGHT_HEADER: Final = "x-tidegate-in-sight"
"""On requests to the gateway: the pools that it may speak of, separated by commas; `*` = all. Envoy
sets it on its routes to the gateway."""

ROUTER_HEADERS: Final = (
    "x-envoy-retry-grpc-on",
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-expected-rq-timeout-ms",
    REQUEST_TIMEOUT_HEADER,
    "x-envoy-upstream-rq-timeout-alt-response",
    "x-envoy-upstream-rq-per-try-idle-timeout-ms",
    "x-envoy-upstream-stream-duration-ms",
    "x-envoy-upstream-alt-stat-name",
)
"""By these Envoy's router would take retries, timeouts and names of statistics from a client whose
address is internal."""

STRIPPED_HEADERS: Final = (
    CONTROL_POOL_HEADER,
    CONTROL_VARIANT_HEADER,
    CONTROL_CLUSTER_HEADER,
    CONTROL_MODEL_HEADER,
    UNPICKED_HEADER,
    ASKED_HEADER,
    WAITED_HEADER,
    DESTINATION_HEADER,
    DESTINATION_SERVED_KEY,
    SUBSET_KEY,
    MAX_RETRIES_HEADER,
    READS_HEADER,
    REPEATABLE_HEADER,
    RETRY_ON_HEADER,
    MISSING_HEADER,
    AGAIN_HEADER,
    UNTIL_HEADER,
    SENT_HEADER,
    ATTEMPT_HEADER,
    TICKET_HEADER,
    TRY_TIMEOUT_HEADER,
    IN_SIGHT_HEADER,
    REASON_HEADER,
    SERVED_BY_HEADER,
    REPLICAS_HEADER,
    LOAD_FORMAT_HEADER,
    LOAD_HEADER,
    LOAD_BIN_HEADER,
    *ROUTER_HEADERS,
)
"""Headers that are removed from clients' requests before anything reads them: all control headers,
those of load reports, and those that only answers have."""

SPOOFABLE_HEADERS: Final = tuple(
    name for name in STRIPPED_HEADERS if name.startswith(("x-tidegate-", "x-gateway-"))
)
"""Those of them that the picker itself removes from requests of generic proxies."""

# --- Values of control headers ------------------------------------------------------------------

REPEATABLE: Final = "1"
"""Of `x-tidegate-repeatable`: Envoy may send the request again."""

NOT_REPEATABLE: Final = "0"
"""Of `x-tidegate-repeatable`: Envoy sends the request once."""

REPEAT_MISSING: Final = "retriable-headers"
"""Of `x-envoy-retry-on`: an answer 404 or NOT_FOUND is repeated once."""

# --- Dynamic metadata ---------------------------------------------------------------------------

PLACED_KEY: Final = "tidegate-placed"
"""Metadata key of a request's model, and of the models that a replica has and others lack."""

LB_NAMESPACE: Final = "envoy.lb"
"""Envoy's override_host policy reads the pick here."""

SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
"""The subset hint is read here."""

TIDEGATE_NAMESPACE: Final = "tidegate"
"""``{picker: str, ticket: str, at: str, slot: str, unreadable: bool}``: written with each pick,
carried by access logs; ``at`` is the picker's address, ``slot`` how log sinks find it."""

POOL_KEY: Final = "pool"
"""Key of the pool within the namespace ``tidegate``; written for generic proxies, whose clusters
have other names."""

DESTINATIONS_KEY: Final = "destinations"
"""Key within the namespace ``tidegate`` by which a generic proxy says what it reads: `one` address,
as for a cluster of type ORIGINAL_DST, or a list."""

LOG_SLOT_KEY: Final = "slot"
"""Key of the picker's log slot within the namespace ``tidegate``; control servers assign it."""

TOLD_KEY: Final = "told"
"""Key of the metadata `tidegate`: what access logs show of a pick. A struct with `pool`, `variant`,
`reason` and, where a prompt was read, `prompt_tokens` and `predicted_tokens`."""

USAGE_NAMESPACE: Final = "tidegate.usage"
"""``{prompt, cached, output: number, model: str}`` of a streamed answer that tells its usage."""

FIRST_BODY_TAG: Final = "first-body"
"""Custom tag of access-log entries, ``first;age``: microseconds from the first byte sent to the
replica to the first one of its answer's body, empty before that, and the request's milliseconds."""

SUMMARY_TAG: Final = "summary"
"""Custom tag of access-log entries: what pickers read of a request that ended well, in one
line, with semicolons between its parts. Unknown parts are empty."""

SUMMARY_GOOD: Final = "DownstreamEnd;1;-;;;"
"""Beginning of that line where a request has ended, at its first attempt, without a flag of Envoy's
or a remark of the picker's (``unreadable``, a generic proxy's pool)."""

LOG_CLUSTER_PREFIX: Final = "tidegate-picker-log/"
"""Envoy's cluster of the picker in a log slot starts with this; the slot's number follows."""

# --- Request attributes that Envoy sends with the first ext_proc message ------------------------

LOG_COLLECTOR_CLUSTER: Final = "tidegate-otlp/logs"
"""Cluster of the collector of Envoy's access log."""

TRACE_COLLECTOR_CLUSTER: Final = "tidegate-otlp/traces"
"""Cluster of the collector of Envoy's spans."""

CLUSTER_ATTRIBUTE: Final = "xds.cluster_name"
"""The cluster that the route drew: pool, variant and protocol."""

ROUTE_ATTRIBUTE: Final = "xds.route_name"
"""The route that matched."""

SOURCE_ATTRIBUTE: Final = "source.address"
"""Address and port of the client, behind proxies that the listener trusts (`x-forwarded-for`)."""

PROTOCOL_ATTRIBUTE: Final = "request.protocol"
"""What the client speaks: `HTTP/1.0`, `HTTP/1.1`, `HTTP/2` or `HTTP/3`."""

CERTIFICATE_ATTRIBUTES: Final = (
    "connection.uri_san_peer_certificate",
    "connection.subject_peer_certificate",
    "connection.dns_san_peer_certificate",
)
"""Names of a client by its certificate, the best first; absent without a certificate."""

LEAST_HEADER_BYTES: Final = 4096
"""Requests whose headers are at most this long are sent to pickers without their length."""

_HEADER_BYTES: Final = "request.total_size + 4 * size(request.headers)"
HEADERS_ATTRIBUTE: Final = (
    f'{_HEADER_BYTES} > {LEAST_HEADER_BYTES} ? {_HEADER_BYTES} : size(request.headers["x-none"])'
)
"""Length of the request's headers as HTTP/1.1 writes them; absent up to 4,096 bytes, where the
expression ends in a header that no request has."""

# --- xDS type URLs ------------------------------------------------------------------------------

_PREFIX = "type.googleapis.com/"
LISTENER_TYPE: Final = _PREFIX + "envoy.config.listener.v3.Listener"
"""LDS: the listener."""

ROUTE_TYPE: Final = _PREFIX + "envoy.config.route.v3.RouteConfiguration"
"""RDS: routes."""

CLUSTER_TYPE: Final = _PREFIX + "envoy.config.cluster.v3.Cluster"
"""CDS: one cluster per pool, variant and protocol."""

ENDPOINT_TYPE: Final = _PREFIX + "envoy.config.endpoint.v3.ClusterLoadAssignment"
"""EDS: the replicas of a cluster."""

RUNTIME_TYPE: Final = _PREFIX + "envoy.service.runtime.v3.Runtime"
"""RTDS: limits and weights, which change without touching a cluster or a route."""

SECRET_TYPE: Final = _PREFIX + "envoy.extensions.transport_sockets.tls.v3.Secret"
"""SDS: names of certificate files."""

EXTENSION_TYPE: Final = _PREFIX + "envoy.config.core.v3.TypedExtensionConfig"
"""ECDS: settings of HTTP filters that change without touching the listener."""

POOL_TYPE: Final = _PREFIX + "tidegate.fleet.v1.Pool"
"""Tidegate's own type: what pickers need to know of a pool."""

SHORT_TYPE: Final = {
    CLUSTER_TYPE: "CDS",
    ENDPOINT_TYPE: "EDS",
    LISTENER_TYPE: "LDS",
    ROUTE_TYPE: "RDS",
    RUNTIME_TYPE: "RTDS",
    SECRET_TYPE: "SDS",
    EXTENSION_TYPE: "ECDS",
    POOL_TYPE: "POOL",
}
"""The short name of each type, for people."""

# --- Node and resource names --------------------------------------------------------------------

LEADER_METADATA: Final = "tidegate-leader"
"""Trailing metadata of a refused call of the admin API: the leader's admin address."""

PICKER_NODE_CLUSTER: Final = "tidegate-picker"
"""``node.cluster`` of a picker on ADS; every other node is an Envoy."""

NODE_AUDIENCE_KEY: Final = "tidegate.audience"
"""Key of an xDS node's metadata that says what it is served: `envoy` or `picker`."""

NODE_GROUP: Final = "tidegate.node_group"
"""Key of ``node.metadata``: the group of an Envoy, in which a change is tried before all."""

NODE_PICKERS: Final = "tidegate.pickers"
"""Key of ``node.metadata``: addresses of the pickers that an Envoy asks first, with commas."""

LISTENER_NAME: Final = "tidegate-ingress"
"""Name of the listener; a further one has its own name behind a slash."""

HTTP3_LISTENER_NAME: Final = "tidegate-ingress-h3"
"""Name of the listener for HTTP/3."""

ROUTE_CONFIG_NAME: Final = "tidegate-routes"
"""Name of the route configuration; that of a further listener has its name behind a slash."""

RUNTIME_NAME: Final = "tidegate"
"""Name of Envoy's runtime layer that the control server fills; the bootstrap names it too."""

WEIGHT_LAYERS: Final = tuple(f"tidegate-weights-{number}" for number in range(32))
"""Names of Envoy's runtime layers with the variants' weights; the bootstrap names them too."""

PICKER_CLUSTER: Final = "tidegate-picker"
"""Envoy's cluster of the pickers."""

ACCEPTED_METADATA: Final = "tidegate-accepted"
"""Initial metadata of an ADS stream whose first request the control server has accepted: a client
that holds the newest state gets no response that would tell it."""

GATEWAY_NODE_CLUSTER: Final = "tidegate-gateway"
"""``node.cluster`` of a gateway on ADS; it is served what pickers are, and makes no picks."""

GATEWAY_CLUSTERS: Final = {"http": "tidegate-gateway/http", "grpc": "tidegate-gateway/grpc"}
"""Envoy's clusters of the gateways, by protocol."""

GATEWAY_OPERATOR_CLUSTERS: Final = {
    "http": "tidegate-gateway/operators/http",
    "grpc": "tidegate-gateway/operators/grpc",
}
"""Envoy's clusters of the gateways' ports for operators, by protocol."""

GATEWAY_SERVICE: Final = "tidegate.gateway"
"""Service by which a gateway's gRPC health tells of itself; every other one is the fleet."""

PICKER_FILTER: Final = "envoy.filters.http.ext_proc"
"""Name of the filter that asks the pickers, and of its settings (ECDS)."""

USAGE_FILTER: Final = "tidegate.usage"
"""Name of the filter that reads token counts from streamed answers."""

STRIP_FILTER: Final = "tidegate.strip"
"""Name of the filter that removes headers that clients may not send, and of its settings (ECDS)."""

JWT_FILTER: Final = "tidegate.jwt"
"""Name of the filter that checks tokens, and of its settings (ECDS)."""

CORS_FILTER: Final = "tidegate.cors"
"""Name of the filter that answers browsers' questions; its policy is in the routes."""

COMPRESS_FILTERS: Final = {
    "gzip": "tidegate.compress.gzip",
    "brotli": "tidegate.compress.brotli",
    "zstd": "tidegate.compress.zstd",
}
"""Algorithm -> name of the filter that compresses answers, and of its settings (ECDS)."""

LIMIT_FILTER: Final = "tidegate.limit"
"""Name of the filter that limits the rate of all requests, and of its settings (ECDS)."""

POOL_LIMIT_FILTER: Final = "tidegate.limit.pools"
"""Name of the filter that limits the rate of pools' requests, and of its settings (ECDS)."""

KEYS_CLUSTER_PREFIX: Final = "tidegate-jwks/"
"""Envoy's cluster from which the keys of a provider of tokens are fetched starts with this; the
provider's name follows."""

Protocol = Literal["http", "grpc"]
"""How Envoy speaks to a replica."""


class ClusterRef(NamedTuple):
    """What a cluster's name says: one per pool, variant and protocol."""

    pool: str
    variant: str
    protocol: Protocol

    def __str__(self) -> str:
        """Return the cluster's name, ``pool/variant/protocol``."""
        return f"{self.pool}/{self.variant}/{self.protocol}"


def parse_cluster(name: str) -> ClusterRef | None:
    """Read a cluster name; ``None`` where it is not one of a pool."""
    match name.split("/"):
        case [str(pool), str(variant), "http" | "grpc" as protocol] if pool and variant:
            return ClusterRef(pool, variant, protocol)
        case _:
            return None


UNNAMED_ROUTE_PREFIX: Final = "unnamed/"
"""Routes whose pool only the body names start with this: there the picker draws the pool."""

UNSERVED_ROUTE_PREFIX: Final = "unserved/"
"""Routes of requests whose body names a model that no pool serves start with this."""
