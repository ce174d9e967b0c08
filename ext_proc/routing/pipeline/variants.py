"""Variants: draws the variant of a request, before any endpoint is considered.

The order is: lease, version pin, header pin, the draw of Envoy's route, weights. With a session the
draw is by hash instead of at random, with the arithmetic of Envoy's weighted clusters under
``use_hash_policy`` on one header: ``xxHash64(value, seed 0) % total`` over the cumulative weights
in the order of the variants. Envoy and picker therefore send a session to the same variant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import xxhash

from ext_proc.routing.values.refusal import (
    TRITON_FORMS,
    Refusal,
    RefusalKind,
    unknown_in_triton,
)
from ext_proc.routing.values.request import Form
from tidegate_api.names import AGAIN_HEADER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ext_proc.routing.values.pool import Arms, Pool, Variant
    from ext_proc.routing.values.request import Features, Request
    from ext_proc.routing.values.rng import Rng

_QUESTIONS: Final = (Form.MODEL_CALL, Form.OTHER)


def session_point(session: str, total: int) -> int:
    """Return a session's point in ``range(total)``, equal to Envoy's."""
    return xxhash.xxh64_intdigest(session.encode("utf-8", "surrogateescape"), 0) % total


def draw_variant(
    pool: Pool,
    features: Features,
    headers: Mapping[str, str],
    *,
    leased: str | None,
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
    if leased is not None:
        return leased
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
