"""EndpointSlices to an observation. Pure.

Rules:

1. A slice is kept as what is needed of it, at most ``MAX_IN_SLICE`` endpoints (the API's bound).
   Slices of names (``addressType: FQDN``) and endpoints without a usable address are left out.
2. ``serving`` counts, not ``ready``: a Service that publishes replicas before they are ready, and
   one that ends, set ``ready`` as they like. An unknown ``serving`` is ``ready``, an unknown
   ``ready`` is true, as the API defines them.
3. A pod is one endpoint, whatever the number of its slices, Services and address families: its name
   is the identity. Its ports may come from several slices; of its addresses the asked family's is
   used, and the lowest of several.
4. Slices of one pod may be of different ages. It serves if one of them says so: whether it does
   is probed before it gets work. It terminates if one of them says so: that is never taken back.
5. Of two pods of one name, the one that does not terminate is meant (a StatefulSet's successor);
   likewise of two pods with one address.
6. Without a pod (hand-made slices) the address is the identity.
7. An endpoint without a port that was asked for, or without any, is left out, and told. Where all
   are, nothing is observed: a renamed port is no reason to take all replicas away.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from xds_server.applications.discovery.kubernetes.answers import BadAnswerError
from xds_server.applications.discovery.values import MAX_ENDPOINTS, Found, Observation
from xds_server.fleet.model.fields import join_host_port

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from xds_server.fleet.model.kubernetes import KubernetesSpec

MAX_IN_SLICE: Final = 1000
MAX_IDENTITY: Final = 127
"""Characters of an endpoint's id; pods' names have up to 253."""
MAX_ZONE: Final = 128
MAX_NAMED: Final = 8
"""Most ports that a sentence names."""
_MAX_PORT: Final = 65_535
_DIGEST: Final = 16
_POD: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class TooManyError(Exception):
    """There are more slices or endpoints than are kept; the message says what to do."""


class SliceEntry(NamedTuple):
    """One endpoint of a slice."""

    pod: str | None
    uid: str | None
    """Of the pod: a successor has another."""
    address: str
    zone: str | None
    serving: bool
    terminating: bool


@dataclass(frozen=True, slots=True)
class Slice:
    """What is needed of an EndpointSlice."""

    family: str
    """``ipv4`` or ``ipv6``."""
    http: int | None
    grpc: int | None
    named: tuple[str, ...]
    """Names of its ports, at most ``MAX_NAMED``."""
    variant: str | None
    zone: str | None
    device: str | None
    entries: tuple[SliceEntry, ...]


class Sighting(NamedTuple):
    """An observation, and what is wrong with the slices that it comes from."""

    observation: Observation | None
    """``None`` where no endpoint has the ports that were asked for."""
    fault: str
    """One sentence; empty if there is none."""


def name_of(found: Mapping[str, Any]) -> str:
    """Return the name of an object.

    Raises:
        BadAnswerError: It has none.
    """
    metadata = found.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise BadAnswerError("an object has no name")
    return name


def reduce(found: Mapping[str, Any], spec: KubernetesSpec) -> Slice | None:
    """Return what is needed of a slice; ``None`` for one whose addresses are names.

    Raises:
        BadAnswerError: It is no EndpointSlice.
    """
    family = found.get("addressType")
    if family not in ("IPv4", "IPv6"):
        return None
    endpoints = found.get("endpoints")
    if endpoints is not None and not isinstance(endpoints, list):
        raise BadAnswerError("the endpoints of an EndpointSlice are no list")
    ports = _ports(found.get("ports"))
    labels = _labels(found)
    entries = (_entry(each, family) for each in (endpoints or ())[:MAX_IN_SLICE])
    names = spec.port_names
    http = None if names.http is None else ports.get(names.http)
    grpc = None if names.grpc is None else ports.get(names.grpc)
    return Slice(
        family=family.lower(),
        http=http,
        grpc=grpc,
        named=tuple(sorted(ports))[:MAX_NAMED],
        variant=_label(labels, spec.labels.variant),
        zone=_label(labels, spec.labels.zone),
        device=_label(labels, spec.labels.device),
        entries=tuple(entry for entry in entries if entry is not None),
    )


def observe(slices: Mapping[str, Slice], spec: KubernetesSpec) -> Sighting:
    """Return what the slices say together; equal slices give equal observations.

    Raises:
        TooManyError: There are more than ``MAX_ENDPOINTS`` endpoints.
    """
    pods: dict[str, list[tuple[Slice, SliceEntry]]] = {}
    for name in sorted(slices):
        for entry in slices[name].entries:
            pods.setdefault(_key(entry), []).append((slices[name], entry))
    made = {key: _found(pods[key], spec) for key in sorted(pods)}
    lacking = next((key for key, one in made.items() if one is None), None)
    fault = "" if lacking is None else _without_port(lacking.strip("/"), pods[lacking], spec)
    found = one_per_address(one for one in made.values() if one is not None)
    if pods and not found:
        return Sighting(None, fault)
    if len(found) > MAX_ENDPOINTS:
        raise TooManyError(
            f"the selector {spec.label_selector!r} matches {len(found)} endpoints; the most are "
            f"{MAX_ENDPOINTS}: narrow it"
        )
    return Sighting(Observation(tuple(sorted(found, key=lambda one: one.identity))), fault)


def _key(entry: SliceEntry) -> str:
    # No pod's name has a slash.
    return entry.pod if entry.pod is not None else f"/{entry.address}"


def _found(all_seen: list[tuple[Slice, SliceEntry]], spec: KubernetesSpec) -> Found | None:
    """Return the one endpoint that all entries of a name are; ``None`` if a port is missing."""
    uid = _meant(entry for _, entry in all_seen)
    seen = [(each, entry) for each, entry in all_seen if entry.uid == uid]
    families = {each.family for each, _ in seen}
    family = spec.family if spec.family in families else min(families)
    seen = [(each, entry) for each, entry in seen if each.family == family]
    address = min(entry.address for _, entry in seen)
    seen = [(each, entry) for each, entry in seen if entry.address == address]
    http = min((each.http for each, _ in seen if each.http is not None), default=None)
    grpc = min((each.grpc for each, _ in seen if each.grpc is not None), default=None)
    names = spec.ports
    lacking = names is not None and (
        (http is None and names.http is not None) or (grpc is None and names.grpc is not None)
    )
    if lacking or (http is None and grpc is None):
        return None
    pod = seen[0][1].pod
    addresses = [None if port is None else join_host_port(address, port) for port in (http, grpc)]
    return Found(
        identity=bounded(pod) if pod is not None else addresses[1] or addresses[0] or address,
        http=addresses[0],
        grpc=addresses[1],
        variant=_first(each.variant for each, _ in seen),
        zone=_first(entry.zone or each.zone for each, entry in seen),
        device=_first(each.device for each, _ in seen),
        serving=any(entry.serving for _, entry in seen),
        terminating=any(entry.terminating for _, entry in seen),
    )


def _meant(entries: Iterable[SliceEntry]) -> str | None:
    """Return the pod that a name means: of those that do not terminate, else of all, the lowest."""
    ending: dict[str | None, bool] = {}
    for entry in entries:
        ending[entry.uid] = ending.get(entry.uid, False) or entry.terminating
    return min(ending, key=lambda uid: (ending[uid], uid or ""))


def one_per_address(found: Iterable[Found]) -> list[Found]:
    """Leave one endpoint per address: one that does not terminate, else the first by name."""
    kept: list[Found] = []
    taken: set[str] = set()
    for each in sorted(found, key=lambda one: (one.terminating, not one.serving, one.identity)):
        addresses = {address for address in (each.http, each.grpc) if address is not None}
        if not addresses & taken:
            kept.append(each)
            taken |= addresses
    return kept


def _first(values: Iterable[str | None]) -> str | None:
    return min((value for value in values if value), default=None)


def bounded(pod: str, most: int = MAX_IDENTITY) -> str:
    """Return a name of bounded length that is still the pod's own."""
    if len(pod) <= most:
        return pod
    digest = hashlib.sha256(pod.encode()).hexdigest()[:_DIGEST]
    return f"{pod[: most - _DIGEST - 1]}-{digest}"


def _without_port(name: str, seen: list[tuple[Slice, SliceEntry]], spec: KubernetesSpec) -> str:
    names = spec.port_names
    asked = [port for port in (names.http, names.grpc) if port is not None]
    named = sorted({port for each, _ in seen for port in each.named})
    missing = [port for port in asked if port not in named] or asked
    has = ", ".join(map(repr, named[:MAX_NAMED])) if named else "none"
    lacks = (" or " if spec.ports is None else " and ").join(map(repr, missing))
    return (
        f"{name} in the namespace {spec.namespace!r} has no port named {lacks}; its Services have: "
        f"{has}. Set `ports`, null for one that replicas do not have"
    )


def _ports(found: Any) -> dict[str, int]:
    """Return the TCP ports by name."""
    if found is None:
        return {}
    if not isinstance(found, list):
        raise BadAnswerError("the ports of an EndpointSlice are no list")
    ports = {}
    for each in found:
        if not isinstance(each, dict) or each.get("protocol", "TCP") != "TCP":
            continue
        name, port = each.get("name") or "", each.get("port")
        if isinstance(name, str) and isinstance(port, int) and 0 < port <= _MAX_PORT:
            ports[name] = port
    return ports


def _labels(found: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = found.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    return labels if isinstance(labels, dict) else {}


def _label(labels: Mapping[str, Any], key: str | None) -> str | None:
    value = labels.get(key) if key is not None else None
    return value if isinstance(value, str) and value else None


def _entry(found: Any, family: str) -> SliceEntry | None:
    """Return an endpoint of a slice; ``None`` if it has no address of the slice's family."""
    if not isinstance(found, dict):
        return None
    addresses = found.get("addresses")
    # All addresses of an endpoint are equivalent; the API has consumers use the first.
    first = addresses[0] if isinstance(addresses, list) and addresses else None
    address = _ip(first, 4 if family == "IPv4" else 6)
    if address is None:
        return None
    said = found.get("conditions")
    conditions: Mapping[str, Any] = said if isinstance(said, dict) else {}
    target = found.get("targetRef")
    pod = target if isinstance(target, dict) and target.get("kind") == "Pod" else {}
    return SliceEntry(
        pod=_pod_name(pod.get("name")),
        uid=_text(pod.get("uid")),
        address=address,
        zone=_zone(found.get("zone")),
        serving=_condition(conditions, "serving", "ready"),
        terminating=conditions.get("terminating") is True,
    )


def _condition(conditions: Mapping[str, Any], *names: str) -> bool:
    """Return the first of the conditions that is known; true if none is."""
    for name in names:
        value = conditions.get(name)
        if isinstance(value, bool):
            return value
    return True


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _pod_name(value: Any) -> str | None:
    """Return a pod's name; ``None`` for what can be none, which hand-made slices may hold."""
    return value if isinstance(value, str) and _POD.fullmatch(value) else None


def _zone(value: Any) -> str | None:
    text = _text(value)
    return text if text is not None and len(text) <= MAX_ZONE and text.isprintable() else None


def _ip(value: Any, version: int) -> str | None:
    try:
        parsed = ipaddress.ip_address(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return str(parsed) if parsed is not None and parsed.version == version else None
