"""Readiness probes."""

import pytest

from tidegate.stack.probes import missing_of, status_synced
from tidegate.stack.processes.waiting import StackError
from tidegate_api.admin.v1.admin_pb2 import ClientStatus, GetStatusResponse, TypeStatus

ENVOY_TYPES = {"CDS": "SYNCED", "EDS": "SYNCED", "LDS": "SYNCED", "RDS": "SYNCED"}


def client(kind: str, types: dict[str, str], message: str = "") -> ClientStatus:
    """Return a client's status."""
    return ClientStatus(
        node=f"{kind}-1",
        kind=kind,
        types=[TypeStatus(type=n, state=s, message=message) for n, s in types.items()],
    )


def status(*clients: ClientStatus, settled: bool = True, file_error: str = "") -> GetStatusResponse:
    """Return the control server's status."""
    return GetStatusResponse(settled=settled, clients=clients, file_error=file_error)


def both() -> tuple[ClientStatus, ClientStatus]:
    """Return an Envoy and a picker in sync."""
    return client("envoy", ENVOY_TYPES), client("picker", {"POOL": "SYNCED"})


def test_nothing_is_missing_when_all_is_in_sync():
    """With one Envoy and one picker in sync, nothing is missing."""
    assert missing_of(status(*both()), {"envoy", "picker"}) is None


def test_an_absent_client_is_missing():
    """The result names the missing kind of client."""
    assert missing_of(status(both()[0]), {"envoy", "picker"}) == "no picker is connected"


def test_a_change_under_way_is_waited_for():
    """A running change is not settled."""
    assert missing_of(status(*both(), settled=False), {"envoy"}) == "a change is under way"


def test_a_type_not_subscribed_yet_is_missing():
    """A required type without subscription is missing."""
    half = client("envoy", {"CDS": "SYNCED", "EDS": "SYNCED"})
    assert missing_of(status(half), {"envoy"}) == "envoy-1: LDS is not subscribed"


@pytest.mark.parametrize("state", ["STALE", "NOT_SENT"])
def test_a_type_behind_is_missing(state):
    """The result names the type and the client."""
    late = client("envoy", {**ENVOY_TYPES, "RDS": state})
    assert missing_of(status(late), {"envoy"}) == f"envoy-1: RDS is {state}"


def test_an_optional_type_may_be_unsent_but_not_stale():
    """Optional types may be unsent but not stale."""
    unsent = client("envoy", {**ENVOY_TYPES, "RTDS": "NOT_SENT"})
    stale = client("envoy", {**ENVOY_TYPES, "RTDS": "STALE"})
    assert missing_of(status(unsent), {"envoy"}) is None
    assert missing_of(status(stale), {"envoy"}) == "envoy-1: RTDS is STALE"


def test_a_rejection_ends_the_wait_in_the_clients_words():
    """A rejection raises with the client's message."""
    rejected = client("envoy", {**ENVOY_TYPES, "LDS": "NACKED"}, "no such filter")
    with pytest.raises(StackError, match="envoy-1 rejected LDS: no such filter"):
        missing_of(status(rejected), {"envoy"})


def test_a_bad_fleet_file_ends_the_wait():
    """An invalid fleet file raises with the control server's message."""
    with pytest.raises(StackError, match=r"not in force: fleet\.yaml:3"):
        missing_of(status(file_error="fleet.yaml:3: no pools"), {"envoy"})


async def test_a_control_server_that_is_not_there_is_missing():
    """An unreachable control server is missing and does not raise."""
    missing = await status_synced("127.0.0.1:1", {"envoy"})
    assert missing == "admin at 127.0.0.1:1: UNAVAILABLE"
