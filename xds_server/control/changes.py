"""The changes of single values that operators make at run time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from xds_server.fleet import change as changes_of
from xds_server.fleet.members.members import found_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.control.journal import Journal
    from xds_server.control.operation import Change, ChangeOptions
    from xds_server.control.steps import FleetText, Step
    from xds_server.fleet.model.fleet import Fleet
    from xds_server.fleet.revision import Revision

_T = TypeVar("_T")


class OperatorChanges(ABC):
    """Makes changes of single values, each by one call of ``_make``."""

    journal: Journal
    """Stores the revisions."""

    @property
    @abstractmethod
    def fleet(self) -> Fleet:
        """The fleet in force as clients get it."""

    @abstractmethod
    async def _make(self, wanted: FleetText | Step, options: ChangeOptions) -> Change:
        """Make the fleet of a step the fleet in force."""

    async def apply(self, fleet: Fleet, options: ChangeOptions) -> Change:
        """Make ``fleet`` the fleet in force, without merging.

        Raises:
            FleetError: It breaks rules.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(lambda _: fleet, options)

    async def set_weights(
        self, pool: str, weights: Mapping[str, int], options: ChangeOptions
    ) -> Change:
        """Set weights of a pool's variants; variants that are not named keep theirs.

        Raises:
            UnknownName: No such pool or variant.
            BadChange: A weight is out of range.
            FleetError: The result breaks a rule, e.g. all weights would be 0.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(
            lambda live: changes_of.set_weights(required(live), pool, weights), options
        )

    async def set_draining(self, endpoint: str, draining: bool, options: ChangeOptions) -> Change:
        """Drain a replica (an id, or ``pool/id`` for one pool only), or end its drain.

        Raises:
            UnknownName: No such endpoint.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(
            lambda live: changes_of.set_draining(
                required(live), endpoint, draining, found_ids(self.fleet)
            ),
            options,
        )

    async def set_standby(self, endpoint: str, standby: bool, options: ChangeOptions) -> Change:
        """Make a replica (an id, or ``pool/id``) a standby, or take it into use for good.

        Raises:
            UnknownName: No such endpoint.
            LastReplica: It is the last usable one of a variant, and the change is not forced.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(
            lambda live: changes_of.set_standby(required(live), endpoint, standby), options
        )

    async def set_section(
        self,
        pool: str,
        section: changes_of.Section,
        values: Mapping[str, float],
        options: ChangeOptions,
    ) -> Change:
        """Set fields of a pool's limits or slow start; fields that are not named keep theirs.

        Raises:
            UnknownName: No such pool.
            BadChange: An unknown field, or a value out of range.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(
            lambda live: changes_of.set_section(required(live), pool, section, values), options
        )

    async def set_drop_overload(self, pool: str, percent: float, options: ChangeOptions) -> Change:
        """Make Envoy reject a percentage of a pool's requests; 0 ends this.

        Raises:
            UnknownName: No such pool.
            BadChange: The percentage is out of range.
            StoreError: It could not be stored.
            Busy: Too many changes wait.
        """
        return await self._make(
            lambda live: changes_of.set_drop_overload(required(live), pool, percent), options
        )

    async def revisions(self, limit: int) -> tuple[Revision, ...]:
        """Return at most ``limit`` revisions, newest first.

        Raises:
            StoreError: They cannot be read.
        """
        return await self.journal.revisions(limit)


def required(value: _T | None) -> _T:
    """Return a value that is there once the control server has a fleet.

    Raises:
        RuntimeError: It has none yet.
    """
    if value is None:
        raise RuntimeError("the control server has no fleet yet")
    return value
