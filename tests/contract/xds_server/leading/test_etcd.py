"""What a real etcd answered to each call, and that the small one of these tests answers alike."""

from __future__ import annotations

from contextlib import closing

import grpc
import pytest

from support.etcd_port import METHODS, PREFIX, EtcdPort, Refused, Replay, SmallEtcd, recorded, used
from tidegate.stack.processes.ports import HeldPorts
from tidegate_api.etcd.v3 import etcd_pb2 as pb
from xds_server.fleet.stored.shared import SharedFault, Unreachable
from xds_server.leading.etcd import Etcd


def test_each_call_is_answered_as_recorded() -> None:
    """Requests have the bytes that etcd took, and its answers are understood."""
    with EtcdPort(Replay().answer) as port:
        used(Etcd([port.address], PREFIX))


def test_the_small_etcd_answers_as_the_real_one() -> None:
    """In all that our schema has."""
    calls = recorded()
    granted = [bytes.fromhex(each["answer"]) for each in calls if "Grant" in each["method"]]
    small = SmallEtcd([pb.LeaseGrantResponse.FromString(each).ID for each in granted])
    for call in calls:
        if call["request"] == "long":
            continue
        asked = bytes.fromhex(call["request"])
        if "answer" not in call:
            with pytest.raises(Refused) as refused:
                small.answer(call["method"], asked)
            assert (refused.value.code.name, refused.value.text) == (call["code"], call["text"])
            continue
        kind = METHODS[call["method"]][1]
        expected = kind.FromString(bytes.fromhex(call["answer"]))
        expected.DiscardUnknownFields()
        assert kind.FromString(small.answer(call["method"], asked)) == expected, call


def test_another_member_is_asked_where_one_does_not_answer() -> None:
    """What may be repeated is repeated there; of a swap it is said that its outcome is unknown."""
    with HeldPorts() as ports, EtcdPort(SmallEtcd().answer) as port:
        dead = ports.address()
        etcd = Etcd([dead, port.address], PREFIX)
        etcd.write("a", b"1")
        assert etcd.read("a")
        etcd = Etcd([dead, port.address], PREFIX)
        with pytest.raises(Unreachable):
            etcd.swap("b", b"1", 0)
        assert etcd.swap("b", b"1", 0)
    with pytest.raises(Unreachable):
        etcd.read("a")


def test_what_may_be_repeated_outlasts_an_election() -> None:
    """Two members with etcd 3.6's answer while there is no leader, given five times."""
    small, refusals = SmallEtcd(), iter(range(5))

    def electing(method: str, request: bytes) -> bytes:
        if next(refusals, None) is not None:
            raise Refused(grpc.StatusCode.UNAVAILABLE, "etcdserver: leader changed")
        return small.answer(method, request)

    with (
        EtcdPort(electing) as one,
        EtcdPort(electing) as two,
        closing(Etcd([one.address, two.address], PREFIX)) as etcd,
    ):
        etcd.write("a", b"1")
        assert etcd.read("a")


@pytest.mark.parametrize(
    ("code", "said", "remedy"),
    [
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", "disarm its alarm"),
        ("INVALID_ARGUMENT", "etcdserver: user name is empty", "give --store-cert"),
    ],
)
def test_a_refusal_is_told_with_what_to_do(code, said, remedy) -> None:
    """These are etcd 3.6's words without space, and with users."""

    def refuse(*_: object) -> bytes:
        raise Refused(grpc.StatusCode[code], said)

    with (
        EtcdPort(refuse) as port,
        closing(Etcd([port.address], PREFIX)) as etcd,
        pytest.raises(SharedFault, match=remedy),
    ):
        etcd.read("a")
