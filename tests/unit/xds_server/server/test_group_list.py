"""The list of the pickers that place new sequences, and how it changes."""

from __future__ import annotations

from tidegate_api.addresses import MAX_TOLD
from xds_server.server.group_list import (
    GONE_S,
    MAX_MEMBERS,
    RETURN_S,
    GroupRoster,
    ListedPickers,
    PickerStanding,
)


class Group:
    """A roster, and pickers that say what they should."""

    def __init__(self, *members: str, kept: ListedPickers | None = None) -> None:
        self.now = 100.0
        self.roster = GroupRoster(7, kept or ListedPickers(), self.now)
        self.pickers: list[str] = []
        for each in members:
            self.join(each)

    @property
    def members(self) -> str:
        """The list in force, as one word."""
        return "".join(self.roster.list.members)

    def settle(self) -> None:
        """Put in force what is due."""
        while (made := self.roster.next(self.now)) is not None:
            self.roster.put(made)

    def tell(self, picker: str, *, places: bool = True, agrees: bool = True) -> None:
        """Let a picker say that it holds the list in force."""
        standing = PickerStanding(f"at-{picker}", places, agrees, self.roster.list)
        self.roster.told(picker, standing)
        self.settle()

    def all_agree(self) -> None:
        """Let all pickers say it."""
        for each in self.pickers:
            self.tell(each)

    def join(self, picker: str) -> None:
        """Let a picker join, and all agree on what follows."""
        self.pickers.append(picker)
        self.tell(picker)
        self.all_agree()

    def end(self, picker: str) -> None:
        """End a picker's stream."""
        self.pickers.remove(picker)
        self.roster.left(picker, self.now)
        self.settle()


def test_pickers_are_listed_one_after_the_other():
    """Each list has a greater number, and was agreed on."""
    group = Group("a", "b", "c")
    assert (group.members, group.roster.list.agreed) == ("abc", True)
    assert group.roster.list.version == (3, 7)
    assert group.roster.addresses == ("at-a", "at-b", "at-c")


def test_a_list_waits_until_more_than_half_agree_on_the_one_before():
    """Else more than half of one list and of the next but one might have no member in common."""
    group = Group("a")
    group.tell("b", agrees=False)
    group.tell("c", agrees=False)
    assert group.members == "ab"
    group.tell("a", agrees=False)
    group.tell("c", agrees=False)
    assert group.members == "ab"
    for each in "abc":
        group.tell(each)
    assert group.members == "abc"


def test_half_of_a_list_do_not_agree_on_it():
    """The other half may hold the one before it."""
    group = Group("a", "b", "c")
    group.tell("d", agrees=False)
    agreed = []
    for each in "abc":
        group.tell(each)
        agreed.append(group.roster.list.agreed)
    assert (group.members, agreed) == ("abcd", [False, False, True])


def test_who_does_not_hold_the_list_is_not_added():
    """What it says of itself is about an older one."""
    group = Group("a")
    group.roster.told("b", PickerStanding("at-b", True, True, ListedPickers()))
    group.settle()
    assert group.members == "a"


def test_who_leaves_is_removed_at_once():
    """It says that it places no longer."""
    group = Group("a", "b")
    group.tell("b", places=False)
    assert group.members == "a"


def test_who_is_gone_is_removed_after_a_while():
    """A stream that begins again in time changes nothing."""
    group = Group("a", "b", "c")
    group.end("c")
    group.now += GONE_S / 2
    group.settle()
    assert (group.members, group.roster.due(group.now)) == ("abc", GONE_S / 2)
    group.now += GONE_S / 2
    group.settle()
    assert group.members == "ab"


def test_after_a_restart_of_the_control_server_pickers_have_time_to_return():
    """Its pickers come back one after the other."""
    group = Group(kept=ListedPickers(4, 6, ("a", "b"), agreed=True))
    group.join("a")
    group.now += RETURN_S - 1
    group.settle()
    assert group.members == "ab"
    group.now += 1
    group.settle()
    assert (group.members, group.roster.list.version) == ("a", (5, 7))


def test_the_last_member_stays():
    """A list without members could be followed by any."""
    group = Group("a")
    group.tell("a", places=False)
    group.end("a")
    group.now += RETURN_S
    group.settle()
    assert group.members == "a"


def test_more_than_half_must_be_there():
    """Where they are lost at once the list stays, and works again as soon as enough return."""
    group = Group("a", "b", "c")
    group.end("b")
    group.end("c")
    group.now += RETURN_S
    group.settle()
    assert group.members == "abc"


def test_a_list_on_which_too_few_can_agree_is_taken_back():
    """A picker that ends just as it is added does not stop the others."""
    group = Group("a")
    group.tell("b", agrees=False)
    assert group.members == "ab"
    group.roster.left("b", group.now)
    group.settle()
    assert group.members == "ab"
    group.now += GONE_S
    group.settle()
    assert (group.members, group.roster.list.agreed) == ("a", False)
    group.tell("a")
    assert (group.members, group.roster.list.agreed) == ("a", True)


def test_a_newer_list_that_a_picker_holds_is_taken_over():
    """A control server whose store is lost, or older, goes on with it."""
    group = Group("a")
    held = ListedPickers(9, 3, ("b", "c"))
    group.roster.told("b", PickerStanding("at-b", True, True, held))
    group.settle()
    assert (group.members, group.roster.list.version) == ("bc", (9, 3))


def test_no_picker_can_use_up_the_numbers_of_lists():
    """The control server alone makes greater ones."""
    group = Group("a")
    before = group.roster.list
    held = ListedPickers(MAX_TOLD, 3, ("b",))
    group.roster.told("b", PickerStanding("at-b", True, True, held))
    group.settle()
    assert group.roster.list == before


def test_members_are_bounded():
    """The list has room for so many; further ones wait."""
    names = tuple(f"p{number:03}" for number in range(MAX_MEMBERS))
    group = Group(*names[:2], kept=None)
    group.roster.put(ListedPickers(9, 7, names, agreed=True))
    for each in names:
        group.roster.told(each, PickerStanding(each, True, True, group.roster.list))
    assert group.roster.full
    group.roster.told("z", PickerStanding("z", True, True, group.roster.list))
    assert group.roster.next(group.now) is None
