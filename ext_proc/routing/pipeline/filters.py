"""Who may serve a request, before any candidate is priced: its variant, then filters.

The variant is drawn before any endpoint is considered, in the order: lease, version pin, header
pin, the draw of Envoy's route, weights. With a session the draw is by hash instead of at random,
with the arithmetic of Envoy's weighted clusters under ``use_hash_policy`` on one header:
``xxHash64(value, seed 0) % total`` over the cumulative weights in the order of the variants. Envoy
and picker therefore send a session to the same variant.

Filters then remove candidates that must not be chosen. *Constraints* are those that a request puts
on a replica besides its health: a device that the model requires, GPU memory for a model that is
not loaded there, and an adapter if the pool requires it. Unknown memory removes no replica. In a
pool without constraints their cost is one check of its settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from ext_proc.routing.state.candidates import BY_MODEL, NO_LIMIT, most_of_low
from ext_proc.routing.values.refusal import (
    MUST_WAIT,
    TRITON_FORMS,
    Refusal,
    RefusalKind,
    unknown_in_triton,
)
from ext_proc.routing.values.request import Form
from tidegate_api.names import AGAIN_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.health.placement import Holders
    from ext_proc.routing.state.candidates import Candidate
    from ext_proc.routing.values.pool import Arms, Pool, Variant
    from ext_proc.routing.values.request import Care, Features, Request
    from ext_proc.routing.values.rng import Rng
    from ext_proc.routing.values.settings import ModelNeeds


_QUESTIONS: Final = (Form.MODEL_CALL, Form.OTHER)


def session_point(session: str, total: int) -> int:
    """Return a session's point in ``range(total)``, equal to Envoy's."""
    return xxhash.xxh64_intdigest(session.encode("utf-8", "surrogateescape"), 0) % total


def draw_variant(
    pool: Pool,
    features: Features,
    headers: Mapping[str, str],
    *,
    drawn: str | None,
    rng: Rng,
) -> str | Refusal:
    """Return the name of the variant that serves a request.

    Args:
        pool: The request's pool.
        features: Features of the request; its version and session are used.
        headers: Its headers by lower-case name, for header pins.
        leased: The variant of the sequence's lease.
        drawn: The variant that Envoy's route drew; it is kept unless a pin overrides it.
        rng: Source of randomness, used only if neither lease, pin, route nor session decides.

    Returns:
        A variant of the pool, or a refusal: ``UNKNOWN_VERSION`` if every variant declares a version
        and none declares the requested one, ``NO_ENDPOINTS`` if no variant has weight. Questions
        about a version that no variant declares go to any: replicas answer them in their own words,
        and clients expect these, such as ``ready: false``.
    """
    variants: Sequence[Variant] = pool.variants
    pinned = False
    if features.version:
        exact = [each for each in variants if each.model_version == features.version]
        pinned = bool(exact)
        variants = exact or [each for each in variants if each.model_version is None]
        if not variants and features.form in _QUESTIONS:
            variants = pool.variants
        elif not variants:
            return _unknown_version(pool, features, features.version)
    known = False
    for each in variants:
        if each.headers and all(headers.get(name) == value for name, value in each.headers):
            return each.name
        if each.name == drawn:
            known = True
    if known and drawn is not None:
        return drawn
    if pinned and len(variants) == 1:
        return variants[0].name
    return _by_weight(pool, variants, features.session, pinned=pinned, rng=rng)


def is_drawn(pool: Pool, request: Request, arms: Arms) -> bool:
    """Return whether weights drew a request's variant from both arms of a rollout.

    They did not where its caller chose a variant, by a version or a header. A request that left a
    hung replica (``AGAIN_HEADER``) is not drawn anew either: it is the same request.
    """
    version, headers = request.features.version, request.headers
    either = False
    for each in pool.variants:
        if version and each.model_version == version:
            either = True
        if each.headers and all(headers.get(name) == value for name, value in each.headers):
            return False
    if AGAIN_HEADER in headers:
        return False
    wanted = version if either else None
    return not version or all(
        each.model_version == wanted
        for each in pool.variants
        if each.name in {arms.canary, arms.stable}
    )


def _unknown_version(pool: Pool, features: Features, version: str) -> Refusal:
    if features.form in TRITON_FORMS and features.model is not None:
        return unknown_in_triton(features.model, version, served=True)
    return Refusal(
        RefusalKind.UNKNOWN_VERSION,
        f"pool {pool.name!r} has no replica of version {version!r}",
    )


def _by_weight(
    pool: Pool, variants: Sequence[Variant], session: str | None, *, pinned: bool, rng: Rng
) -> str | Refusal:
    total = sum(each.weight for each in variants)
    if total == 0:
        if pinned:  # a requested version is served by its variants at any weight
            return variants[0].name
        return Refusal(
            RefusalKind.NO_ENDPOINTS, f"no variant of pool {pool.name!r} has a weight above 0"
        )
    if len(variants) == 1:
        return variants[0].name
    point = int(rng.random() * total) if session is None else session_point(session, total)
    for each in variants:
        point -= each.weight
        if point < 0:
            return each.name
    # Reached only with an rng that violates its contract and returns 1.0.
    return next(each.name for each in reversed(variants) if each.weight)


FEW: Final = 4
"""Requests by which bursts may exceed a limit, if its share is less and the limit is not."""


def in_subset(
    candidates: Sequence[Candidate], subset: frozenset[str] | None
) -> Sequence[Candidate]:
    """Keep the candidates that a subset hint allows.

    The hint is defined by the endpoint-picker protocol (Gateway API Inference Extension, proposal
    004): an entry is ``ip:port``, or a bare IP that allows all its ports. ``None`` is no hint and
    allows all; an empty hint allows none.
    """
    if subset is None:
        return candidates
    return [
        candidate
        for candidate in candidates
        if candidate.address in subset
        or candidate.host in subset
        or f"[{candidate.host}]" in subset
    ]


def having(holders: Holders | None, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the candidates that are not barred from the model; all of them if each one is."""
    if holders is None or not holders.barred:
        return candidates
    kept = [each for each in candidates if each.key not in holders.barred]
    return kept if 0 < len(kept) < len(candidates) else candidates


def not_wrong(
    holders: Holders, candidates: Sequence[Candidate], model: str | None, where: str
) -> Sequence[Candidate] | Refusal:
    """Keep the candidates that do not answer by another version than the variant's.

    Args:
        holders: Which replicas do.
        candidates: The candidates.
        model: The request's model, for the message.
        where: Pool and variant, for the message.
    """
    kept = [each for each in candidates if each.key not in holders.wrong]
    if kept or not candidates:
        return kept
    told = ", ".join(f"{each.key.id} {holders.wrong[each.key]}" for each in candidates[:8])
    what = "a model" if model is None else f"model {model!r}"
    return Refusal(
        RefusalKind.WRONG_VERSION,
        f"requests to {where} are for version {holders.version} of {what}, but its replicas would"
        f" answer by another version: {told}; name a version in the request, or have the replicas"
        f" serve version {holders.version} as their highest",
    )


def below_limit(candidates: Sequence[Candidate], limit: int) -> Sequence[Candidate]:
    """Keep candidates with fewer than ``limit`` requests in flight on the replica; 0 = no limit."""
    if limit == 0:
        return candidates
    return [candidate for candidate in candidates if candidate.load.in_flight < limit]


def below_slots(candidates: Sequence[Candidate], model: str) -> Sequence[Candidate]:
    """Keep candidates that take a further request for ``model`` by their own limits (``limits``).

    It does what ``Limits.room`` does, without a call for each candidate.
    """
    for each in candidates:
        if each.load.limited >= each.replica.most:
            break
    else:
        return candidates
    return [
        each
        for each in candidates
        if each.load.limited < each.replica.most
        or (
            each.replica.most == BY_MODEL
            and each.load.by_model.get(model, 0) < each.replica.most_of.get(model, NO_LIMIT)
        )
    ]


def below_slots_low(candidates: Sequence[Candidate], model: str) -> Sequence[Candidate]:
    """Keep candidates that take a further request and keep a place, as ``below_slots`` does."""
    kept = []
    for each in candidates:
        used, most = each.load.limited, each.replica.most
        if most == BY_MODEL:
            used = each.load.by_model.get(model, 0)
            most = each.replica.most_of.get(model, NO_LIMIT)
        if used < most_of_low(most):
            kept.append(each)
    return candidates if len(kept) == len(candidates) else kept


def with_holders(
    candidates: Sequence[Candidate],
    matched: Sequence[int],
    free: Sequence[Candidate],
    model: str,
    *,
    holders: bool,
) -> tuple[Sequence[Candidate], Sequence[int]]:
    """Return the candidates that may get a request, with their match depths.

    They are those with room. If there are some, ``holders`` adds those that hold more of the prompt
    than each of them and are below twice their limits: the engine's queue may cost less than to
    compute the prompt elsewhere. An engine whose steps are full of prompts runs few requests, so
    its observed limit is low.

    Args:
        candidates: The candidates.
        matched: How many blocks of the prompt each holds.
        free: Those of them that take a further request by their own limits.
        model: The request's model.
        holders: Whether a holder may exceed its limit; not while requests of the band ``LOW`` wait:
            what waits in an engine is before both bands.
    """
    roomy = set(map(id, free))
    rows = list(zip(candidates, matched, strict=True))
    deepest = max((depth for each, depth in rows if id(each) in roomy), default=0)
    holders = holders and bool(roomy)
    kept = [
        (each, depth)
        for each, depth in rows
        if id(each) in roomy or (holders and depth > deepest and _below(each, model, 1.0))
    ]
    return [each for each, _ in kept], [depth for _, depth in kept]


def below_burst(candidates: Sequence[Candidate], model: str) -> Sequence[Candidate]:
    """Keep the candidates whose limits a burst may exceed (``limits``, rule 7)."""
    return [each for each in candidates if _below(each, model, each.replica.bursts)]


def _below(candidate: Candidate, model: str, share: float) -> bool:
    """Return whether a candidate's limit may be exceeded, by this share of it or ``FEW``."""
    used, most = candidate.load.limited, candidate.replica.most
    if most == BY_MODEL:
        used = candidate.load.by_model.get(model, 0)
        most = candidate.replica.most_of.get(model, NO_LIMIT)
    return share > 0.0 and used < most + min(most, max(FEW, share * most))


def eligible(
    candidates: Sequence[Candidate],
    *,
    subset: frozenset[str] | None,
    limit: int,
    where: str,
    care: Care | None = None,
) -> Sequence[Candidate] | Refusal:
    """Apply all filters but the replicas' own limits.

    Args:
        candidates: The candidates.
        subset: The request's subset hint.
        limit: Maximum number of requests in flight on one replica; 0 = no limit.
        where: Pool and variant, for the message.
        care: What a suspect of replicas' deaths must avoid.

    Returns:
        At least one candidate, or a refusal: ``SATURATED`` if only the in-flight limit removed the
        last candidates, so that a retry may succeed; ``SUSPECT_WAITS`` if ``care`` did; otherwise
        ``NO_ENDPOINTS``.
    """
    if not candidates:
        return Refusal(RefusalKind.NO_ENDPOINTS, f"{where} has no endpoint that takes new work")
    allowed = candidates
    if subset is not None and not (allowed := in_subset(candidates, subset)):
        return Refusal(RefusalKind.NO_ENDPOINTS, f"{where} has no endpoint in the requested subset")
    if care is not None and (care.avoid or care.only is not None):
        allowed = [
            each
            for each in allowed
            if each.key.id not in care.avoid and (care.only is None or each.key.id in care.only)
        ]
        if not allowed:
            return MUST_WAIT
    free = below_limit(allowed, limit)
    if not free:
        return Refusal(
            RefusalKind.SATURATED,
            f"each endpoint of {where} has {limit} requests in flight, its limit"
            " (circuit_breaker.per_endpoint_in_flight)",
            limit=limit * len(allowed),
        )
    return free


def at_limits(candidates: Sequence[Candidate], model: str, where: str) -> Refusal:
    """Return the refusal of a request for which no candidate has room by its own limit."""
    most = [each.replica.most or each.replica.most_of.get(model, 0) for each in candidates]
    return Refusal(
        RefusalKind.SATURATED,
        f"each endpoint of {where} has as many requests in flight as it runs at once, and the next"
        f" ones to run (routing.limit): {', '.join(map(str, most[:8]))}",
        limit=sum(most),
    )


MEMORY_FRESH_S: Final = 10.0
"""Age in seconds from which readings of GPU memory and adapters are stale; Triton reads its GPUs
every 2 s."""


def needs_of(pool: Pool, features: Features) -> ModelNeeds | None:
    """Return the declared needs of a request's model, ``None`` if there are none."""
    for each in pool.model_needs:
        if each.model == features.model:
            return each
    return None


def unmet(pool: Pool, features: Features, candidate: Candidate, now: float) -> str | None:
    """Return the first constraint that a replica does not meet, ``None`` if it meets all.

    Args:
        pool: The pool.
        features: The request.
        candidate: The replica.
        now: Monotonic seconds, for the age of readings.

    Returns:
        ``device``, ``memory`` or ``adapter``.
    """
    needs = needs_of(pool, features) if pool.model_needs else None
    if needs is not None:
        if needs.device_required and candidate.device != needs.device:
            return "device"
        if needs.memory_bytes and _too_small(needs, candidate, now):
            return "memory"
    adapter = features.adapter
    if (
        adapter is not None
        and pool.adapters == "require"
        and not has_adapter(candidate, adapter, now)
    ):
        return "adapter"
    return None


def satisfying(
    pool: Pool, features: Features, candidates: Sequence[Candidate], now: float, where: str
) -> Sequence[Candidate] | Refusal:
    """Keep the candidates that meet all constraints of a request (rule 1).

    Args:
        pool: The pool.
        features: The request.
        candidates: The candidates.
        now: Monotonic seconds.
        where: Pool and variant, for the message.

    Returns:
        The remaining candidates, which is ``candidates`` itself if none was removed; a refusal if
        all were removed.
    """
    if not pool.model_needs and (features.adapter is None or pool.adapters != "require"):
        return candidates
    reasons = [unmet(pool, features, candidate, now) for candidate in candidates]
    if not any(reasons):
        return candidates
    kept = [
        candidate for candidate, reason in zip(candidates, reasons, strict=True) if reason is None
    ]
    if kept:
        return kept
    lacking = {
        "device": f"the device that model {features.model!r} requires",
        "memory": f"free GPU memory for model {features.model!r}",
        "adapter": f"the adapter {features.adapter!r} loaded",
    }
    words = " or ".join(text for name, text in lacking.items() if name in reasons)
    return Refusal(RefusalKind.NO_ENDPOINTS, f"{where} has no endpoint with {words}")


def has_adapter(candidate: Candidate, adapter: str, now: float) -> bool:
    """Return whether a LoRA adapter is declared for a replica, or in use there by a reading."""
    if adapter in candidate.adapters:
        return True
    stale = now - MEMORY_FRESH_S
    return any(
        each.adapters is not None and adapter in each.adapters and each.at > stale
        for each in candidate.replica.readings
    )


def adapter_grade(candidate: Candidate, adapter: str, now: float) -> int:
    """Return how well a LoRA adapter fits a replica.

    Returns:
        3: it is declared for the replica, or a request of it runs. 2: the replica runs fewer
        adapters than it can. 1: requests of it wait there. 0: none of these, or nothing is known.
    """
    if adapter in candidate.adapters:
        return 3
    stale, best = now - MEMORY_FRESH_S, 0
    for each in candidate.replica.readings:
        if each.adapters is None or each.at <= stale:
            continue
        waits = each.adapters_waiting is not None and adapter in each.adapters_waiting
        if adapter in each.adapters and not waits:
            return 3
        if each.adapter_slots is not None and len(each.adapters) < each.adapter_slots:
            best = 2
        elif waits:
            best = max(best, 1)
    return best


def _too_small(needs: ModelNeeds, candidate: Candidate, now: float) -> bool:
    """Return whether fresh readings show that a model is not loaded and does not fit."""
    stale = now - MEMORY_FRESH_S
    loaded = {each.model for each in candidate.replica.readings if each.model and each.at > stale}
    if not loaded or needs.model in loaded:
        return False
    free = [
        each.gpu_memory_free
        for each in candidate.replica.readings
        if each.gpu_memory_free is not None and each.at > stale
    ]
    return bool(free) and max(free) < needs.memory_bytes
