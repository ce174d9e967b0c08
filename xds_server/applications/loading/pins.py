"""Whether a load fits the versions of the variants whose replicas it changes. Pure.

Rules:

1. A variant with ``model_version`` is answered by this version. A load of another version onto its
   replicas is refused before anything is changed: Triton would take the variant's version away, or
   answer by the higher one where a request names none.
2. Without a wanted version the replica's repository chooses. What it has chosen is compared after
   the load, and undone if it is another version.
3. A replica of several pools belongs to a variant in each; those of pools that do not serve the
   model do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from xds_server.applications.loading.parity import ModelDescription
    from xds_server.fleet.model.fleet import Fleet


class Pin(NamedTuple):
    """A replica whose variant has a version."""

    endpoint: str
    pool: str
    variant: str
    version: str
    grpc: bool
    """Whether it is sent requests over gRPC."""


def pins(fleet: Fleet, endpoints: Collection[str], model: str) -> Iterator[Pin]:
    """Yield the pins of these replicas for a model."""
    for pool in fleet.pools:
        if pool.match.models and model not in pool.match.models:
            continue
        versions = {each.name: each.model_version for each in pool.variants}
        for each in pool.endpoints:
            variant = pool.variant_of(each)
            version = versions.get(variant)
            if each.id in endpoints and version is not None:
                yield Pin(each.id, pool.name, variant, version, each.grpc is not None)


def refusal(fleet: Fleet, endpoints: Collection[str], model: str, version: str) -> str:
    """Return why a version must not be loaded onto replicas; empty = it may.

    Args:
        fleet: The fleet in force.
        endpoints: Ids of the replicas.
        model: The model.
        version: The version that is wanted; empty = any.
    """
    against: dict[tuple[str, str, str], list[str]] = {}
    for each in pins(fleet, endpoints, model) if version else ():
        if each.version != version:
            against.setdefault((each.pool, each.variant, each.version), []).append(each.endpoint)
    if not against:
        return ""
    where = "; ".join(
        f"{', '.join(names)}: variant {variant} of pool {pool} has model_version {has}"
        for (pool, variant, has), names in against.items()
    )
    return (
        f"version {version} of {model} would answer requests that are for another version ({where})"
        f"; load it onto the replicas of a variant with model_version {version} (--endpoints), or"
        " under a name of its own, or change the variant's model_version first"
    )


def unlike(fleet: Fleet, model: str, found: Mapping[str, ModelDescription]) -> Iterator[str]:
    """Yield in words which replicas answer by another version than their variant's.

    Args:
        fleet: The fleet in force.
        model: The model.
        found: What each replica says of it.
    """
    for each in pins(fleet, found.keys(), model):
        versions = [one for one in found[each.endpoint].versions if one.isdecimal()]
        if not versions:
            continue
        answers = max(versions, key=int)
        if each.version not in versions or (each.grpc and answers != each.version):
            yield (
                f"{each.endpoint} answers by version {answers}, but variant {each.variant} of pool"
                f" {each.pool} has model_version {each.version}: choose version {each.version} by"
                " the version_policy in its repository, or give the other version a name of its own"
            )
