"""Rules for a pool's variants: weights, replicas, matches, sources and constraints."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tidegate_api.pools import ENVOY_POLICY, MAX_WEIGHT_SUM
from xds_server.fleet.rules.problem import Location, Problem, listed, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate_api.names import Protocol
    from xds_server.fleet.model.fleet import PoolSpec, VariantMatch

_Condition = tuple[str, str, str]
"""Where (header or cookie), name and value."""
_PROTOCOLS: tuple[tuple[Protocol, str], ...] = (("http", "HTTP"), ("grpc", "gRPC"))


def variants(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the problems of a pool's variants."""
    names = [variant.name for variant in pool.variants]
    yield from repeated(names, (*at, "variants"), "name", "variant name")
    total = sum(variant.weight for variant in pool.variants)
    if total == 0:
        yield Problem(
            (*at, "variants"),
            f"all weights of pool '{pool.name}' are 0, so nothing could be served; "
            "give at least one variant a weight",
        )
    if total > MAX_WEIGHT_SUM:
        yield Problem(
            (*at, "variants"),
            f"the weights of pool '{pool.name}' add up to {total}; Envoy takes at most "
            f"{MAX_WEIGHT_SUM}; write smaller ones",
        )
    for earlier, later in _hidden([variant.match for variant in pool.variants]):
        yield Problem(
            (*at, "variants", later, "match"),
            f"every request that matches variant '{names[later]}' already matches "
            f"'{names[earlier]}' before it; use another header, cookie or value, or swap them",
        )
    yield from _shares(at, pool)


def _hidden(matches: list[VariantMatch]) -> Iterator[tuple[int, int]]:
    """Yield (earlier, later) for each match that an earlier one hides; the first that does.

    A match hides those that contain all its conditions. Each is filed under its rarest condition,
    so a later one is compared only with those that share this condition with it.
    """
    conditions = [_conditions(match) for match in matches]
    uses = Counter(condition for each in conditions for condition in each)
    filed: dict[_Condition, list[int]] = {}
    for later, mine in enumerate(conditions):
        candidates = (number for condition in mine for number in filed.get(condition, ()))
        hiding = min((one for one in candidates if conditions[one] <= mine), default=None)
        if hiding is not None:
            yield hiding, later
        if mine:
            rarest = min(mine, key=lambda condition: (uses[condition], condition))
            filed.setdefault(rarest, []).append(later)


def _conditions(match: VariantMatch) -> frozenset[_Condition]:
    headers = (("header", name, value) for name, value in match.headers.items())
    cookies = (("cookie", name, value) for name, value in match.cookies.items())
    return frozenset((*headers, *cookies))


def _shares(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the variants whose share of the requests would have no replica."""
    present: set[str] = set()
    spoken: set[tuple[str, Protocol]] = set()
    for name, kind in pool.serves:
        present.add(name)
        spoken |= {(name, protocol) for protocol, _ in _PROTOCOLS if getattr(kind, protocol)}
    needed = {protocol for _, protocol in spoken}
    for position, variant in enumerate(pool.variants):
        for protocol, word in _PROTOCOLS:
            share = variant.weight > 0 and protocol in needed
            if share and (variant.name, protocol) not in spoken:
                own = variant.name in present
                lack = f"has no replica with a `{protocol}` address" if own else "has no replica"
                yield Problem(
                    (*at, "variants", position, "weight"),
                    f"variant '{variant.name}' has weight {variant.weight} but {lack}, so its "
                    f"share of the {word} requests would fail; add one or set the weight to 0",
                )
                break
    yield from _standing_by(at, pool)


def _standing_by(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the variants that have a share and only standbys: none of them would come in."""
    pool = pool.written
    standbys: dict[str, list[str]] = {}
    for each in pool.endpoints:
        if each.standby:
            standbys.setdefault(pool.variant_of(each), []).append(each.id)
    if not standbys:
        return
    others = {pool.variant_of(each) for each in pool.endpoints if not each.standby}
    every = [variant.name for variant in pool.variants]
    for source in pool.endpoints_from:
        others.update(every if source.tells_variants else [source.variant or every[0]])
    for position, variant in enumerate(pool.variants):
        names = standbys.get(variant.name, ())
        if variant.weight > 0 and names and variant.name not in others:
            yield Problem(
                (*at, "variants", position, "weight"),
                f"variant '{variant.name}' has weight {variant.weight} but only standbys "
                f"({listed(names)}), which stand in for other replicas and so would never come in; "
                "add a replica without `standby: true` or set the weight to 0",
            )


def sources(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield sources that stand twice in the pool, or name a variant that it has not."""
    keys = [source.key for source in pool.endpoints_from]
    yield from repeated(keys, (*at, "endpoints_from"), None, "source")
    names = dict.fromkeys(variant.name for variant in pool.variants)
    for position, source in enumerate(pool.endpoints_from):
        if source.variant is not None and source.variant not in names:
            yield Problem(
                (*at, "endpoints_from", position, "variant"),
                f"pool '{pool.name}' has no variant '{source.variant}'; it has {listed(names)}",
            )


def constraints(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the conflicts between a pool's constraints and its replicas."""
    needs = pool.model_needs
    yield from repeated([each.model for each in needs], (*at, "model_needs"), "model", "model")
    endpoints = pool.endpoints if not pool.written.endpoints_from else ()
    devices = {endpoint.device for endpoint in endpoints}
    served = frozenset(pool.match.models)
    for position, each in enumerate(needs):
        here = (*at, "model_needs", position)
        if each.model not in served:
            yield Problem(
                (*here, "model"),
                f"pool '{pool.name}' does not serve '{each.model}'; "
                "write one of its match.models or remove the entry",
            )
        if each.device_required and not each.device:
            yield Problem(
                (*here, "device_required"),
                f"the device that '{each.model}' requires is missing; write `device`",
            )
        elif each.device_required and endpoints and each.device not in devices:
            yield Problem(
                (*here, "device"),
                f"'{each.model}' requires the device '{each.device}', but no replica of pool "
                f"'{pool.name}' has it; write `device: {each.device}` for one",
            )
    declared = any(endpoint.adapters for endpoint in endpoints)
    if pool.routing.adapters == "require" and endpoints and not declared:
        yield Problem(
            (*at, "routing", "adapters"),
            f"no replica of pool '{pool.name}' declares `adapters`, so every request for an "
            "adapter would be rejected; declare them or write `prefer`",
        )
    if pool.routing.prefer_zone and endpoints and not any(each.zone for each in endpoints):
        yield Problem(
            (*at, "routing", "prefer_zone"),
            f"no replica of pool '{pool.name}' has a `zone`; write zones or remove this",
        )
    if pool.routing.zone_hop and not pool.routing.prefer_zone:
        yield Problem(
            (*at, "routing", "zone_hop"),
            "it has no effect without `prefer_zone: true`; write that too or remove this",
        )
    yield from _chat_template(at, pool)
    yield from _without_effect(at, pool)


def _chat_template(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield what a chat template lacks."""
    routing = pool.routing
    if routing.chat_template is None:
        return
    here = (*at, "routing", "chat_template")
    if routing.tokenizer is None:
        yield Problem(here, "its text cannot be tokenized; write `tokenizer` too")
    if routing.body != "full":
        yield Problem(
            (*at, "routing", "body"),
            f"`{routing.body}` does not show whole chats to `chat_template`; remove this or write"
            " `full`",
        )


def _without_effect(at: Location, pool: PoolSpec) -> Iterator[Problem]:
    """Yield the settings of a pool without a picker that only a picker could keep."""
    if ENVOY_POLICY in pool.routing.allow_override:
        yield Problem(
            (*at, "routing", "allow_override"),
            "a request cannot choose `envoy`, which is a pool's own policy; remove it",
        )
    if pool.routing.policy != ENVOY_POLICY:
        return
    routing = pool.routing
    settings: list[tuple[Location, bool]] = [
        (("routing", "first_message"), routing.first_message == "duplex"),
        (("routing", "allow_override"), bool(routing.allow_override)),
        (("routing", "tokenizer"), routing.tokenizer is not None),
        (("routing", "chat_template"), routing.chat_template is not None),
        (("routing", "adapters"), routing.adapters == "require"),
        (("routing", "prefer_zone"), routing.prefer_zone),
        (("model_needs",), bool(pool.model_needs)),
        (
            ("circuit_breaker", "per_endpoint_in_flight"),
            pool.circuit_breaker.per_endpoint_in_flight > 0,
        ),
    ]
    for field, given in settings:
        if given:
            yield Problem(
                (*at, *field),
                f"pool '{pool.name}' has `policy: envoy`, and without a picker `{field[-1]}` has"
                " no effect; remove it or choose another policy",
            )
