"""Snapshot: all resources for one audience, as an immutable value, serialized and hashed once.

A resource's version is the hash of its bytes. It is therefore the same on every stream, on every
server and after a restart, and it changes exactly when the content does. A type that is absent from
the snapshot is not served: its subscribers get no response. A type that is present without
resources is an empty set, which is sent to wildcard subscribers.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import xxhash
from google.protobuf.any_pb2 import Any as AnyMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    Plain = Callable[["Snapshot"], Mapping[str, Mapping[str, bytes]]]

_COMPARED: Final = 16
"""Pairs of sets whose comparison is kept: most clients go from the same set to the same."""

_NOTHING: Final[MappingProxyType[str, Resource]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Resource:
    """One named resource; all streams share its bytes."""

    name: str
    version: str
    """Hash of the message's bytes, 32 hexadecimal digits."""
    any: bytes
    """The serialized ``google.protobuf.Any`` that holds the message."""
    digest: int = field(default=0, repr=False, compare=False)
    """Hash of name and version, 128 bits; the sum over a set identifies the set."""

    @classmethod
    def of(cls, type_url: str, name: str, message: bytes) -> Resource:
        """Return the resource of a serialized message."""
        return _resource(type_url, name, message, None)

    @property
    def message(self) -> bytes:
        """The serialized message."""
        return AnyMessage.FromString(self.any).value


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class TypeSet:
    """All resources of one type; equal sets of successive snapshots are one object."""

    version: str
    resources: MappingProxyType[str, Resource]
    """By name, sorted by name."""
    origin: tuple[weakref.ref[TypeSet], frozenset[str]] | None = field(default=None, repr=False)
    """The set from which ``patched`` made this one, and the names that differ."""

    @classmethod
    def of(
        cls, type_url: str, messages: Mapping[str, bytes | Resource], before: TypeSet | None = None
    ) -> TypeSet:
        """Build the set of a type, see ``Snapshot.of``; ``before`` if it is equal to that.

        Raises:
            ValueError: A name is empty, or the wildcard ``*``.
        """
        if "" in messages or "*" in messages:
            name = "" if "" in messages else "*"
            raise ValueError(f"{type_url}: {name!r} cannot name a resource; rename it")
        known = _NOTHING if before is None else before.resources
        if before is not None and known == messages:
            return before
        resources = {}
        for name in sorted(messages):
            content = messages[name]
            if not isinstance(content, Resource):
                content = _resource(type_url, name, content, known.get(name))
            resources[name] = content
        return _type_set(resources, before)

    def patched(self, changes: Mapping[str, Resource | None]) -> TypeSet:
        """Return this set with other resources, by name; itself if that is equal.

        Costs what is changed, and the copy of a table of all names.

        Args:
            changes: The resources that are replaced or added; ``None`` = it is removed.
        """
        before = self.resources
        names = [name for name, new in changes.items() if _differ(before.get(name), new)]
        if not names:
            return self
        resources, total = before.copy(), int(self.version, 16)
        for name in names:
            was, now = before.get(name), changes[name]
            if was is not None:
                total -= was.digest + 1
            if now is None:
                del resources[name]
            else:
                resources[name] = now
                total += now.digest + 1
        if any(name not in before for name in names):
            resources = {name: resources[name] for name in sorted(resources)}
        origin = weakref.ref(self), frozenset(names)
        return TypeSet(_version(total), MappingProxyType(resources), origin)


@functools.lru_cache(maxsize=_COMPARED)
def changed_names(old: TypeSet, new: TypeSet) -> frozenset[str]:
    """Return the names of which the two sets have different resources, or only one has any."""
    if new.origin is not None and new.origin[0]() is old:
        return new.origin[1]
    was, now = old.resources, new.resources
    changed = {name for name, each in now.items() if was.get(name) is not each}
    same = {n for n in changed if n in was and was[n].version == now[n].version}
    return frozenset((changed - same) | (was.keys() - now.keys()))


class Snapshot:
    """All resources for one audience, by type URL and name.

    Two snapshots are equal if their contents are equal.
    """

    __slots__ = ("_eds_names", "_made_plain", "_plain", "_types")

    def __init__(
        self,
        types: Mapping[str, TypeSet],
        eds_names: Mapping[str, str],
        plain: Plain | None = None,
    ) -> None:
        self._types = types
        self._eds_names = eds_names
        self._plain = plain
        self._made_plain: Snapshot | None = None

    @classmethod
    def of(
        cls,
        contents: Mapping[str, Mapping[str, bytes | Resource] | TypeSet],
        *,
        previous: Snapshot | None = None,
        eds_names: Mapping[str, str] = MappingProxyType({}),
        plain: Plain | None = None,
    ) -> Snapshot:
        """Build a snapshot.

        Args:
            contents: Type URL -> name -> the serialized message, or the resource that was made of
                it; or the type's whole set. Serialization must be deterministic; otherwise map
                fields look changed when they are not.
            previous: A snapshot whose equal resources and sets are reused instead of copied.
            eds_names: Cluster name -> assignment name, for clusters where the two differ.
            plain: Returns the sets that differ in ``plain``, a pure function of this snapshot.

        Raises:
            ValueError: A type URL or a name is empty, or a name is the wildcard ``*``.
        """
        types = {}
        for type_url, messages in contents.items():
            if not type_url:
                raise ValueError("a snapshot has an empty type URL; give each type its URL")
            before = None if previous is None else previous.type_set(type_url)
            if not isinstance(messages, TypeSet):
                types[type_url] = TypeSet.of(type_url, messages, before)
            elif before is not None and before.version == messages.version:
                types[type_url] = before
            else:
                types[type_url] = messages
        return cls(MappingProxyType(types), MappingProxyType(dict(eds_names)), plain)

    @property
    def plain(self) -> Snapshot:
        """The same state for clients that lack the layers of weights; made when first needed."""
        if self._plain is None:
            return self
        if self._made_plain is None:
            made = Snapshot.of(self._plain(self))
            self._made_plain = self._bare().with_types(made, made.type_urls)
        return self._made_plain

    def _bare(self) -> Snapshot:
        return Snapshot(self._types, self._eds_names)

    def with_types(self, other: Snapshot, type_urls: Iterable[str]) -> Snapshot:
        """Return this snapshot with the sets of ``type_urls`` taken from ``other``."""
        taken = {url: other._types[url] for url in type_urls if url in other._types}
        return Snapshot(MappingProxyType({**self._types, **taken}), self._eds_names, self._plain)

    def without(self, type_urls: Collection[str]) -> Snapshot:
        """Return this snapshot without types, also in its ``plain`` form; itself if it has none."""
        kept = {url: found for url, found in self._types.items() if url not in type_urls}
        if len(kept) == len(self._types):
            return self
        plain = self._plain

        def bare(snapshot: Snapshot) -> Mapping[str, Mapping[str, bytes]]:
            made = {} if plain is None else plain(snapshot)
            return {url: found for url, found in made.items() if url not in type_urls}

        return Snapshot(MappingProxyType(kept), self._eds_names, None if plain is None else bare)

    def joined(self, more: Mapping[str, Iterable[Resource]]) -> Snapshot:
        """Return this snapshot with further resources; existing names keep their resource."""
        types = dict(self._types)
        for type_url, resources in more.items():
            known = self.resources(type_url)
            every = {**{one.name: one for one in resources}, **known}
            ordered = {name: every[name] for name in sorted(every)}
            types[type_url] = _type_set(ordered, self._types.get(type_url))
        return Snapshot(MappingProxyType(types), self._eds_names, self._plain)

    def with_resources(
        self, type_url: str, resources: Mapping[str, Resource], previous: Snapshot | None = None
    ) -> Snapshot:
        """Return this snapshot with these resources of a type, by name, instead of its own.

        Args:
            type_url: The type.
            resources: All its resources.
            previous: A snapshot whose equal set is reused.
        """
        ordered = {name: resources[name] for name in sorted(resources)}
        own = _type_set(ordered, None if previous is None else previous.type_set(type_url))
        types = MappingProxyType({**self._types, type_url: own})
        return Snapshot(types, self._eds_names, self._plain)

    def with_resource(self, type_url: str, name: str, message: bytes) -> Snapshot:
        """Return this snapshot with another serialized message as one resource of a type."""
        own = self._types[type_url].patched({name: Resource.of(type_url, name, message)})
        types = MappingProxyType({**self._types, type_url: own})
        return Snapshot(types, self._eds_names, self._plain)

    def resources(self, type_url: str) -> Mapping[str, Resource]:
        """Return the resources of a type by name, sorted by name."""
        found = self._types.get(type_url)
        return _NOTHING if found is None else found.resources

    def type_set(self, type_url: str) -> TypeSet | None:
        """Return the set of a type; ``None`` if the type is not served."""
        return self._types.get(type_url)

    def differs(self, other: Snapshot, type_url: str) -> bool:
        """Return whether the sets of a type are not equal."""
        mine, its = self._types.get(type_url), other._types.get(type_url)
        return mine is not its and self.version(type_url) != other.version(type_url)

    def version(self, type_url: str) -> str:
        """Return the version of a type's whole set; empty if the type is not served."""
        found = self._types.get(type_url)
        return "" if found is None else found.version

    def serves(self, type_url: str) -> bool:
        """Return whether the snapshot contains this type, possibly without resources."""
        return type_url in self._types

    @property
    def type_urls(self) -> tuple[str, ...]:
        """The types that the snapshot serves."""
        return tuple(self._types)

    def eds_name(self, cluster: str) -> str:
        """Return the name of a cluster's assignment (``eds_cluster_config.service_name``)."""
        return self._eds_names.get(cluster, cluster)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        return self is other or (self._versions(), self._eds_names) == (
            other._versions(),
            other._eds_names,
        )

    def __hash__(self) -> int:
        return hash(frozenset(self._versions().items()))

    def __repr__(self) -> str:
        counts = {url.rpartition(".")[2]: len(s.resources) for url, s in self._types.items()}
        return f"Snapshot({counts})"

    def _versions(self) -> dict[str, str]:
        return {type_url: found.version for type_url, found in self._types.items()}


def _resource(type_url: str, name: str, message: bytes, known: Resource | None) -> Resource:
    version = xxhash.xxh3_128_hexdigest(message)
    if known is not None and known.version == version:
        return known
    packed = AnyMessage(type_url=type_url, value=message).SerializeToString(deterministic=True)
    # The version has a fixed length, so the two together are unambiguous.
    digest = xxhash.xxh3_128_intdigest(version.encode() + name.encode())
    return Resource(name, version, packed, digest)


def _type_set(resources: dict[str, Resource], before: TypeSet | None) -> TypeSet:
    # A sum needs no order and no bytes of resources that have not changed.
    total = sum(resource.digest for resource in resources.values()) + len(resources)
    version = _version(total)
    if before is not None and before.version == version:
        return before
    return TypeSet(version, MappingProxyType(resources))


def _version(total: int) -> str:
    return f"{total % 2**128:032x}"


def _differ(old: Resource | None, new: Resource | None) -> bool:
    if old is None or new is None:
        return old is not new
    return old is not new and old.version != new.version
