"""Filters: remove candidates that must not be chosen, before any are priced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ext_proc.routing.state.candidates import BY_MODEL, NO_LIMIT, most_of_low
from ext_proc.routing.values.refusal import MUST_WAIT, Refusal, RefusalKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.health.placement import Holders
    from ext_proc.routing.state.candidates import Candidate
    from ext_proc.routing.values.request import Care

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
