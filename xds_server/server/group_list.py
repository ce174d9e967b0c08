"""Which pickers of a group place new sequences: the list, and how it changes. Pure.

Rules:

1. A list has a number and the life of the process that made it; the greater is the newer. A newer
   one that a picker holds is taken over, so that a lost store costs nothing. Of pickers a number
   counts below ``MAX_TOLD`` only, so that none can use them up.
2. Successive lists differ by one member, and the next is made only once more than half of the
   present one's members have said that they agree on it: these hold every lease that members of
   earlier lists may use, and more than half of the next list include one of them.
3. A picker is added when it holds the present list and would place sequences. It is removed when it
   no longer would, or ``GONE_S`` after its stream has ended; one that has not been heard since this
   process began is removed after ``RETURN_S``, since a restart of the control server ends all
   streams. The last member stays.
4. A list is made only if more than half of its members are connected: others could not agree on it.
   Where more than half are lost at once the list stays, and nothing new is placed, until enough of
   them return. One that is not agreed on is followed by the one before it if more than half of its
   members are lost, but not of those before: more than half of either include one of the other.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from tidegate_api.addresses import MAX_MEMBERS, MAX_TOLD

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

GONE_S: Final = 2.0
RETURN_S: Final = 30.0


class ListedPickers(NamedTuple):
    """A list of the pickers that place new sequences."""

    number: int = 0
    """0 = there is none yet."""
    life: int = 0
    members: tuple[str, ...] = ()
    """Ids, sorted."""
    agreed: bool = False
    """More than half of its members have said that they agree on it."""
    before: tuple[str, ...] = ()
    """Members of the list before it, which were agreed on."""

    @property
    def version(self) -> tuple[int, int]:
        """What differs between two lists; the newer has the greater."""
        return self.number, self.life


class PickerStanding(NamedTuple):
    """How a picker stands in the group, as it says."""

    address: str
    places: bool
    """It places new sequences, or would if it were listed."""
    agrees: bool
    """It and more than half of the members of the list that it holds agree."""
    holds: ListedPickers


class GroupRoster:
    """The list of one group; see the module's rules.

    Args:
        life: Number that is greater for each process of the control server.
        kept: The list that was stored last.
        now: Monotonic seconds.
    """

    def __init__(self, life: int, kept: ListedPickers, now: float) -> None:
        self._life = life
        self._began = now
        self.list = kept
        self._connected: dict[str, PickerStanding] = {}
        self._gone: dict[str, float] = {}
        """When the streams of listed pickers ended, monotonic seconds."""
        self._agree: set[str] = set()
        """Members that have said that they agree on the present list."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the pickers that are connected, sorted."""
        return tuple(sorted({each.address for each in self._connected.values()}))

    def address(self, picker: str) -> str | None:
        """Return the address of a picker; ``None`` = it is not connected."""
        standing = self._connected.get(picker)
        return None if standing is None else standing.address

    @property
    def full(self) -> bool:
        """Whether further pickers are refused."""
        return len(self._connected) >= MAX_MEMBERS

    def told(self, picker: str, standing: PickerStanding) -> None:
        """Take what a picker says; ``next`` must be called afterwards."""
        self._connected[picker] = standing
        self._gone.pop(picker, None)
        if (
            standing.agrees
            and standing.holds.version == self.list.version
            and picker in self.list.members
        ):
            self._agree.add(picker)

    def left(self, picker: str, now: float) -> None:
        """Note that a picker's stream has ended."""
        self._connected.pop(picker, None)
        if picker in self.list.members:
            self._gone[picker] = now

    def put(self, listed: ListedPickers) -> None:
        """Put a list in force that ``next`` has returned and that is stored now."""
        if listed.version != self.list.version:
            self._agree.clear()
        self.list = listed
        self._gone = {name: at for name, at in self._gone.items() if name in listed.members}
        for picker, standing in tuple(self._connected.items()):
            self.told(picker, standing)

    def next(self, now: float) -> ListedPickers | None:
        """Return the list to be put in force next; ``None`` = the present one stays."""
        told = (each.holds for each in self._connected.values() if each.holds.number < MAX_TOLD)
        held = max(told, default=self.list)
        if held.version > self.list.version:
            return held._replace(agreed=False)
        listed = self.list
        if listed.number and not listed.agreed:
            if _most(self._agree, listed.members):
                return listed._replace(agreed=True)
            back = _most(self._connected, listed.before)
            lost = [each for each in listed.members if self._until(each) <= now]
            left = set(listed.members).difference(lost)
            return (
                self._after(listed.before, ()) if back and not _most(left, listed.members) else None
            )
        ready = [
            picker
            for picker, each in sorted(self._connected.items())
            if picker not in listed.members and each.places and each.holds.version == listed.version
        ]
        leaving = [each for each in listed.members if self._until(each) <= now]
        changes = [
            *(
                [set(listed.members) - {each} for each in leaving]
                if len(listed.members) > 1
                else ()
            ),
            *([set(listed.members) | {each} for each in ready]),
        ]
        for members in changes:
            if len(members) <= MAX_MEMBERS and _most(self._connected, members):
                return self._after(sorted(members), listed.members)
        return None

    def _after(self, members: Iterable[str], before: tuple[str, ...]) -> ListedPickers:
        return ListedPickers(self.list.number + 1, self._life, tuple(members), before=before)

    def due(self, now: float) -> float:
        """Return after how many seconds ``next`` may return another list by itself."""
        return min(
            (at - now for at in map(self._until, self.list.members) if at > now), default=inf
        )

    def _until(self, picker: str) -> float:
        """Return when a member may be removed."""
        standing = self._connected.get(picker)
        if standing is not None:
            stays = standing.places or standing.holds.version != self.list.version
            return inf if stays else -inf
        gone = self._gone.get(picker)
        return self._began + RETURN_S if gone is None else gone + GONE_S


def _most(some: Collection[str], members: Collection[str]) -> bool:
    """Return whether some contain more than half of the members."""
    return 2 * sum(each in some for each in members) > len(members)
