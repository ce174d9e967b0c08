"""The fleet: all settings that an operator can declare, as one immutable value.

The same model parses the fleet file, serves the admin API and is published as JSON Schema
(``tidegate validate --schema``). Errors of single fields come from the types in ``fields``; rules
over several fields are checked in ``xds_server.fleet.rules.fleet``.

The JSON Schema covers single fields; rules over several are in ``xds_server.fleet.rules``.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError

from tidegate_api.addresses import PICKER_ADDRESS
from tidegate_api.paths import ANY_MODEL_PATHS
from tidegate_api.pools import (
    MAX_NEEDS,
    MAX_VARIANTS,
    MAX_WEIGHT_SUM,
)
from xds_server.fleet.model.canary import CanarySpec
from xds_server.fleet.model.discovery import EndpointsFrom, Kind, MembershipSpec, Serves
from xds_server.fleet.model.edge import (
    MAX_FILTERS,
    PoolJwt,
    RateLimit,
    ReplicaConnections,
    TypedJson,
)
from xds_server.fleet.model.fields import (
    RESERVED_HEADER_PREFIXES,
    CookieName,
    CookieValue,
    Duration,
    EndpointId,
    HeaderName,
    HeaderValue,
    HostPort,
    HttpPath,
    Label,
    MetricsUrl,
    ModelName,
    ModelVersion,
    Name,
    Percentage,
    ReplicaAddress,
    Strict,
    UpstreamTls,
    split_name_port,
)
from xds_server.fleet.model.listener import ListenerSpec
from xds_server.fleet.model.resilience import (
    CircuitBreaker,
    HealthSpec,
    OutlierSpec,
    Shadow,
    SlowStartSpec,
    StandbySpec,
    Timeouts,
)
from xds_server.fleet.model.routing import ModelNeedsSpec, Routing
from xds_server.fleet.model.telemetry import EndpointTelemetry, PoolTelemetry

DIALECT = "https://json-schema.org/draft/2020-12/schema"


class Match(Strict):
    """Which requests belong to the pool."""

    models: tuple[ModelName, ...] = ()
    """Models it serves; in a path (`/v2/models/NAME`) or in the body."""
    paths: tuple[HttpPath, ...] = ()
    """Further exact paths whose body names the model, e.g. `/v1/chat/completions`. Without models
    and paths: those of completions, chats, embeddings, responses and messages."""


def _any_model(match: Match) -> Match:
    """Return what a pool matches that says nothing of models and paths."""
    return match if match.models or match.paths else Match(paths=ANY_MODEL_PATHS)


class VariantMatch(Strict):
    """What pins a request to a variant."""

    headers: dict[HeaderName, HeaderValue] = Field(default={})
    """All of these request headers must have exactly these values."""
    cookies: dict[CookieName, CookieValue] = Field(default={})
    """All of these cookies must have exactly these values. Envoy alone sees cookies: they pin
    where path or headers name the pool, not where only the body does."""

    @model_validator(mode="after")
    def _reserved(self) -> Self:
        for name in self.headers:
            if name.startswith(RESERVED_HEADER_PREFIXES):
                raise PydanticCustomError(
                    "reserved_header",
                    "header '{name}' is reserved and stripped from client requests; "
                    "choose another name",
                    {"name": name},
                )
        return self

    def __bool__(self) -> bool:
        """Return whether it contains any condition."""
        return bool(self.headers or self.cookies)


class VariantSpec(Strict):
    """A named share of the pool: replicas that serve one version of the model."""

    name: Name
    """Name of the variant, e.g. `stable` or `canary`."""
    weight: Annotated[int, Field(ge=0, le=MAX_WEIGHT_SUM)] = 1
    """Relative share of the requests that nothing pins; 0 = none."""
    model_version: ModelVersion | None = None
    """The version that answers requests without one: over HTTP Envoy writes it into the path; over
    gRPC only replicas are chosen whose highest READY version it is."""
    match: VariantMatch = VariantMatch()
    """Requests that go to this variant whatever the weights."""


class EndpointSpec(Strict):
    """One replica."""

    id: EndpointId = ""
    """Name of the replica, the same in each pool it serves; if omitted, its gRPC or else HTTP
    address."""
    http: ReplicaAddress | None = None
    """Address of its HTTP port, `ip:port` or `name:port`. Each address of a name is a replica."""
    grpc: ReplicaAddress | None = None
    """Address of its gRPC port; the same host as in `http`."""
    metrics: MetricsUrl | None = None
    """URL of its Prometheus page."""
    variant: Name | None = None
    """Its variant; the pool's first if omitted."""
    capacity: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0
    """Relative strength; 2.0 takes twice the load of 1.0."""
    zone: Label = ""
    """Where it stands, for people and metrics, and for the pool's `zones`."""
    labels: Annotated[dict[Label, Label], Field(max_length=64)] = Field(default={})
    """Free key-value pairs, carried to the pickers."""
    device: Label = ""
    """What it computes on, e.g. `a100`; for the pool's `model_needs`."""
    adapters: Annotated[tuple[Label, ...], Field(max_length=1024)] = ()
    """LoRA adapters that are loaded on it, as requests name them."""
    draining: bool = False
    """Takes no new work."""
    standby: bool = False
    """Keeps its models loaded and takes no requests until it is needed (the pool's `standby`)."""
    telemetry: EndpointTelemetry = EndpointTelemetry()
    """Further sources of its readings, beside `metrics`."""

    _listed: tuple[str, ...] = PrivateAttr(default=())
    _leaving: tuple[str, ...] = PrivateAttr(default=())

    @property
    def listed(self) -> tuple[str, ...]:
        """Models that it has and others of its variant lack, as Envoys are told."""
        return self._listed

    def listing(self, models: tuple[str, ...]) -> EndpointSpec:
        """Return this replica with these models listed."""
        made = self.model_copy()
        made._listed = models  # noqa: SLF001 - an object of this class
        return made

    @property
    def leaving(self) -> tuple[str, ...]:
        """Models that are about to be unloaded from it, as pickers are told."""
        return self._leaving

    def losing(self, models: tuple[str, ...]) -> EndpointSpec:
        """Return this replica with these models leaving it."""
        made = self.model_copy()
        made._leaving = models  # noqa: SLF001 - an object of this class
        return made

    @model_validator(mode="before")
    @classmethod
    def _default_id(cls, data: Any) -> Any:
        if isinstance(data, dict) and not data.get("id"):
            return {**data, "id": data.get("grpc") or data.get("http") or ""}
        return data

    @model_validator(mode="after")
    def _has_address(self) -> Self:
        if self.http is None and self.grpc is None:
            raise PydanticCustomError("no_address", "an endpoint needs `grpc`, `http` or both", {})
        names = {
            named and named[0]
            for each in (self.http, self.grpc)
            if each
            for named in (split_name_port(each),)
        }
        if len(names) > 1:
            raise PydanticCustomError(
                "two_hosts", "`http` and `grpc` of one endpoint name different hosts; use one", {}
            )
        return self

    @property
    def dns_name(self) -> str | None:
        """The name that DNS must turn into addresses; ``None`` if it has addresses."""
        named = split_name_port(self.http or self.grpc or "")
        return None if named is None else named[0]

    @property
    def kind(self) -> Kind:
        """The protocols that it speaks."""
        return Kind(self.http is not None, self.grpc is not None)


MAX_KNOWN_FORMS: Final = 1024
"""Most lists of endpoints whose variants and kinds are kept."""

_known_forms: dict[int, tuple[tuple[EndpointSpec, ...], frozenset[tuple[str | None, Kind]]]] = {}


def _forms(endpoints: tuple[EndpointSpec, ...]) -> frozenset[tuple[str | None, Kind]]:
    """Return the variants and kinds of a pool's endpoints, which copies of the pool share."""
    known = _known_forms.get(id(endpoints))
    if known is None or known[0] is not endpoints:
        if len(_known_forms) >= MAX_KNOWN_FORMS:
            _known_forms.clear()
        found = frozenset((each.variant, each.kind) for each in endpoints)
        known = _known_forms[id(endpoints)] = endpoints, found
    return known[1]


class PoolSpec(Strict):
    """Replicas that serve the same models, and how they are used."""

    name: Name
    """Name of the pool; not `unnamed`, `unpicked` or `unserved`."""
    default: bool = False
    """Takes requests whose pool only the body could name, where it names no model."""
    match: Annotated[Match, AfterValidator(_any_model)] = Match(paths=ANY_MODEL_PATHS)
    """Which requests belong to the pool; if omitted or empty, those of any model that no other pool
    has. Of Triton's paths (`/v2/models/NAME`) its own listener opens those of `models` alone."""
    variants: Annotated[tuple[VariantSpec, ...], Field(min_length=1, max_length=MAX_VARIANTS)] = (
        VariantSpec(name="stable"),
    )
    """Named shares of the pool, for canaries and A/B tests; at most 256."""
    endpoints: tuple[EndpointSpec, ...] = ()
    """The replicas."""
    endpoints_from: Annotated[tuple[EndpointsFrom, ...], Field(max_length=16)] = ()
    """Where further replicas are found."""
    membership: MembershipSpec = MembershipSpec()
    """How replicas that are found come and go."""
    drained: Annotated[tuple[EndpointId, ...], Field(max_length=4096)] = ()
    """Ids of found replicas that take no new work; `tidegate drain` adds to it."""
    routing: Routing = Routing()
    """How the picker chooses among the replicas."""
    model_needs: Annotated[tuple[ModelNeedsSpec, ...], Field(max_length=MAX_NEEDS)] = ()
    """What single models need of a replica."""
    standby: StandbySpec = StandbySpec()
    """When replicas with `standby: true` come in by themselves."""
    slow_start: SlowStartSpec = SlowStartSpec()
    """The ramp of a new replica."""
    circuit_breaker: CircuitBreaker = CircuitBreaker()
    """Bounds on connections, requests and retries."""
    outlier: OutlierSpec = OutlierSpec()
    """When failing or slow replicas are ejected."""
    health: HealthSpec = HealthSpec()
    """Active checks, and what pickers share of their findings."""
    timeouts: Timeouts = Timeouts()
    """Bounds on a request's time."""
    zones: tuple[Label, ...] = ()
    """Zones in the order in which Envoy, left to itself, prefers their replicas; further zones
    come last. Empty = all alike."""
    shadow: Shadow | None = None
    """Copies requests to a variant without traffic of its own."""
    canary: CanarySpec = CanarySpec()
    """How rollouts by `tidegate canary` go to 100 %."""
    drop_overload: Percentage = 0.0
    """Emergency brake: Envoy refuses this share of the pool's requests with 503."""
    upstream_tls: UpstreamTls | None = None
    """Speak TLS to the replicas."""
    telemetry: PoolTelemetry = PoolTelemetry()
    """Series of the replicas' metrics pages that no dialect knows, and load reports."""
    jwt: PoolJwt | None = None
    """The token that requests must carry, wherever they name the pool."""
    rate_limit: RateLimit | None = None
    """Most requests to the pool; counted once a picker has chosen, and after `jwt`."""
    connections: ReplicaConnections = ReplicaConnections()
    """Bounds and signs of life of connections to the replicas."""
    http_filters: Annotated[dict[Name, TypedJson], Field(max_length=MAX_FILTERS)] = Field(
        default={}
    )
    """By the name of a filter in `listener.http_filters.after`: its message for single routes, for
    this pool's requests."""
    cluster_patch: Annotated[tuple[TypedJson, ...], Field(max_length=4)] = ()
    """Messages that are merged into the pool's clusters: Envoy's `Cluster` or
    `HttpProtocolOptions`."""

    _written: PoolSpec | None = PrivateAttr(default=None)
    _low_objectives: tuple[str, ...] = PrivateAttr(default=())

    @property
    def written(self) -> PoolSpec:
        """The pool with its replicas as the fleet file has them: names, and no found ones."""
        return self if self._written is None else self._written

    @property
    def kinds(self) -> frozenset[Kind]:
        """The sets of protocols that its replicas speak, as in ``serves``."""
        pool = self.written
        written = {kind for _, kind in _forms(pool.endpoints)}
        return frozenset(written).union(*(each.kinds for each in pool.endpoints_from))

    @property
    def serves(self) -> frozenset[Serves]:
        """What its replicas can serve, those included that may still be found."""
        pool = self.written
        every = [variant.name for variant in pool.variants]
        found = {Serves(name or every[0], kind) for name, kind in _forms(pool.endpoints)}
        for source in pool.endpoints_from:
            names = every if source.tells_variants else [source.variant or every[0]]
            found |= {Serves(name, kind) for name in names for kind in source.kinds}
        return frozenset(found)

    @property
    def chooses_models(self) -> bool:
        """Whether Envoy's own choice follows which replica has which model.

        Where there is one model, Envoy's health check asks for it.
        """
        return self.health.repository and len(self.match.models) != 1

    @property
    def guarded(self) -> bool:
        """Whether requests need more than its name to reach it; the gateway is silent about it."""
        return self.jwt is not None or bool(self.http_filters)

    @property
    def finds(self) -> bool:
        """Whether it has replicas that must be found: by name, or from sources."""
        return bool(self.endpoints_from) or any(each.dns_name for each in self.endpoints)

    @property
    def low_objectives(self) -> tuple[str, ...]:
        """Names of objectives whose requests are in the lower band: those set, then those found."""
        return tuple(dict.fromkeys((*self.routing.low_objectives, *self._low_objectives)))

    def published(
        self,
        written: PoolSpec,
        endpoints: tuple[EndpointSpec, ...],
        low_objectives: tuple[str, ...] = (),
    ) -> PoolSpec:
        """Return this pool with replicas that have addresses; ``written`` remains known."""
        pool = self.model_copy(update={"endpoints": endpoints})
        pool._written = written  # noqa: SLF001 - an object of this class
        pool._low_objectives = low_objectives  # noqa: SLF001 - an object of this class
        return pool

    def plain(self, endpoints: tuple[EndpointSpec, ...]) -> PoolSpec:
        """Return the pool with these replicas and nothing to find."""
        pool = self.model_copy(
            update={
                "endpoints": endpoints,
                "endpoints_from": (),
                "membership": MembershipSpec(),
                "drained": (),
            }
        )
        pool._written = None  # noqa: SLF001 - an object of this class
        pool._low_objectives = ()  # noqa: SLF001 - an object of this class
        return pool

    def variant_of(self, endpoint: EndpointSpec) -> str:
        """Return the name of the variant to which ``endpoint`` belongs."""
        return endpoint.variant or self.variants[0].name


class Pickers(Strict):
    """The pickers that Envoy asks."""

    addresses: tuple[HostPort, ...] = (PICKER_ADDRESS,)
    """The pickers that Envoy asks; of a picker with several workers, each worker."""
    timeout: Annotated[Duration, Field(gt=0)] = 1.0
    """How long Envoy waits for an answer before it goes on by itself. A dead picker costs nothing
    (Envoy's health check), so this bounds only a slow one; too short, and sequences lose their
    replica whenever the machine is busy."""
    fail_open: bool = True
    """Without an answer Envoy balances by itself; otherwise the request fails."""
    tls: UpstreamTls | None = None
    """TLS to pickers that have certificates, for requests, log entries and health checks; plain if
    omitted."""


class GatewayAdminPorts(Strict):
    """The gateways' ports for operators, for listeners that have `operators`."""

    http: Annotated[tuple[HostPort, ...], Field(min_length=1, max_length=16)]
    """Their `--admin` addresses."""
    grpc: Annotated[tuple[HostPort, ...], Field(min_length=1, max_length=16)]
    """Their `--admin-grpc` addresses, in the same order."""


class Gateways(Strict):
    """The processes that answer questions about the fleet as one Triton (`tidegate gateway`)."""

    http: Annotated[tuple[HostPort, ...], Field(min_length=1, max_length=16)]
    """Their HTTP addresses. Envoy uses the first one that lives, so that sums are of one memory."""
    grpc: Annotated[tuple[HostPort, ...], Field(min_length=1, max_length=16)]
    """Their gRPC addresses, in the same order."""
    tls: UpstreamTls | None = None
    """TLS to gateways that have certificates; plain if omitted."""
    operators: GatewayAdminPorts | None = None
    """Their ports for operators, for `listener.further` with `operators`."""


class Fleet(Strict):
    """The whole desired state."""

    listener: ListenerSpec = ListenerSpec()
    """Where clients connect."""
    pickers: Pickers = Pickers()
    """The pickers that Envoy asks for each request."""
    gateway: Gateways | None = None
    """The gateways that Envoy asks about models, statistics and the server; without them such
    questions go to any replica, or are refused where they address one."""
    on_reject: Literal["rollback", "keep", "quorum"] = "quorum"
    """When an Envoy refuses what others take: all go back, or the others keep new routes, or all go
    back if at least `reject_quorum` of the voices are refusals ([who has
    one](xds.md#when-a-client-refuses))."""
    reject_quorum: Annotated[float, Field(gt=0.0, le=1.0)] = 0.5
    """With `on_reject: quorum`: the share of refusals that ends a change."""
    waves: bool = False
    """Each step of a change comes to one Envoy, then to its node group, then to all. Drains, shed
    load and replicas found sick do not wait for waves."""
    pools: Annotated[tuple[PoolSpec, ...], Field(min_length=1)]
    """The pools of replicas."""

    _unpicked: tuple[tuple[str, int], ...] = PrivateAttr(default=())

    @property
    def unpicked(self) -> tuple[tuple[str, int], ...]:
        """Clusters, and most requests without a pick to each, as Envoys are told."""
        return self._unpicked

    def bounding(self, unpicked: tuple[tuple[str, int], ...]) -> Fleet:
        """Return this fleet with these bounds of requests without a pick."""
        made = self.model_copy()
        made._unpicked = unpicked  # noqa: SLF001 - an object of this class
        return made


def json_schema() -> dict[str, Any]:
    """Return the schema as plain values, ready to be written as JSON."""
    schema = Fleet.model_json_schema(mode="validation")
    schema["$defs"]["EndpointSpec"]["anyOf"] = [
        {"required": ["http"], "properties": {"http": {"type": "string"}}},
        {"required": ["grpc"], "properties": {"grpc": {"type": "string"}}},
    ]
    return {"$schema": DIALECT, **schema, "title": "Tidegate fleet"}
