"""Loading of successive texts of one fleet: only pools and endpoints that were edited are parsed.

Rules:

1. The result is the one of ``load_text``. Whatever is unusual (a fault, an anchor, another form of
   the file) is left to ``load_text``, which also words the faults.
2. What one text and the next have in common is the same objects in both fleets.
3. What is remembered is bounded by the last text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from xds_server.fleet import document
from xds_server.fleet.load import load_text
from xds_server.fleet.model.fleet import EndpointSpec, Fleet, PoolSpec
from xds_server.fleet.parts import texts
from xds_server.fleet.parts.sharing import shared, shared_pool
from xds_server.fleet.rules.sound import sound

if TYPE_CHECKING:
    from xds_server.fleet.document import YamlNode


class _WholeNeeded(Exception):  # noqa: N818 - reads as the sentence it is
    """The text cannot be loaded in parts."""


@dataclass(frozen=True, slots=True)
class _KnownEndpoint:
    spec: EndpointSpec
    values: int
    """Number of values in its text."""


@dataclass(frozen=True, slots=True)
class _KnownPool:
    spec: PoolSpec
    values: int
    rest: str = ""
    """Its text without its endpoints."""
    endpoints: dict[str, _KnownEndpoint] = field(default_factory=dict)
    """By text."""


class FleetLoader:
    """Loads texts of one fleet, one after the other; see the module's rules.

    Any thread may call, one at a time.
    """

    def __init__(self) -> None:
        self._last: Fleet | None = None
        self._pools: dict[str, _KnownPool] = {}
        """By text."""

    def load(self, text: str, source: str = "fleet") -> Fleet:
        """Load a fleet file, as ``load_text`` does.

        Args:
            text: YAML or JSON.
            source: Name of the text in error messages.

        Raises:
            FleetError: The text is not a valid fleet; the error lists all faults.
        """
        try:
            fleet = self._in_parts(text)
        except (_WholeNeeded, document.DocumentError, ValidationError):
            fleet = load_text(text, source)
        self._last = shared(self._last, fleet)
        return self._last

    def _in_parts(self, text: str) -> Fleet:
        cut = texts.cut_pools(text, self._pools) if len(text) <= document.MAX_BYTES else None
        if cut is None or len(text.encode(errors="replace")) > document.MAX_BYTES:
            raise _WholeNeeded
        root, values = _read(cut.rest)
        if not texts.holds(cut, root.child("pools")):
            raise _WholeNeeded
        pools = {item: self._pools.get(item) or self._pool(item) for item in cut.items}
        if values - 1 + sum(pools[item].values for item in cut.items) > document.MAX_VALUES:
            raise _WholeNeeded
        plain = root.plain()
        plain["pools"] = [pools[item].spec for item in cut.items]
        fleet = Fleet.model_validate(plain)
        if not sound(fleet):
            raise _WholeNeeded
        self._pools = pools
        return fleet

    def _before(self, text: str) -> _KnownPool | None:
        """Return the pool before an edit, by the first line, which usually has its name."""
        begin = text.partition("\n")[0] + "\n"
        known = (pool for item, pool in self._pools.items() if item.startswith(begin))
        return next(known, None)

    def _pool(self, text: str) -> _KnownPool:
        before = self._before(text)
        known = {} if before is None else before.endpoints
        cut = texts.cut_endpoints(text, known)
        rest = texts.pool_document(text) if cut is None else cut.rest
        root, values = _read(rest)
        pool = texts.only(root, ("pools", 0))
        if pool is None:
            raise _WholeNeeded
        values -= texts.POOL_VALUES
        plain, endpoints = pool.plain(), dict[str, _KnownEndpoint]()
        if cut is not None:
            if not texts.holds(cut, pool.child("endpoints")):
                raise _WholeNeeded
            endpoints = {item: known.get(item) or _endpoint(item) for item in cut.items}
            values += sum(endpoints[item].values for item in cut.items) - 1
            plain["endpoints"] = [endpoints[item].spec for item in cut.items]
        if before is not None and before.rest == rest and before.endpoints and endpoints:
            # Of a pool whose endpoints alone were edited all other fields are known.
            spec = before.spec.model_copy(update={"endpoints": tuple(plain["endpoints"])})
        else:
            spec = PoolSpec.model_validate(plain)
        spec = shared_pool(None if before is None else before.spec, spec)
        return _KnownPool(spec, values, rest, endpoints)


def _endpoint(text: str) -> _KnownEndpoint:
    root, values = _read(texts.endpoint_document(text))
    endpoint = texts.only(root, ("pools", 0, "endpoints", 0))
    if endpoint is None:
        raise _WholeNeeded
    plain: Any = endpoint.plain()
    return _KnownEndpoint(EndpointSpec.model_validate(plain), values - texts.ENDPOINT_VALUES)


def _read(text: str) -> tuple[YamlNode, int]:
    """Return a document and the number of its values."""
    found = document.parse(text)
    if found.anchored:
        raise _WholeNeeded
    return found.root, found.values
