"""Who a caller of the admin API is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.operators import PLAIN, bearer, machine, user
from tidegate_common.tls.roles import table
from xds_server.admin.access.authority import MAX_FAILURES, WINDOW_S, Authority
from xds_server.admin.access.caller import OWN_AUTHORS, CallEnded, Caller
from xds_server.admin.access.tokens import Tokens, line_of, new_token
from xds_server.control.fleet_control import FALLBACK_AUTHOR

OWNER = 4711
TOKEN = new_token()


@pytest.fixture(scope="module")
def tokens(tmp_path_factory) -> Tokens:
    """Tokens of one operator."""
    file: Path = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text(line_of("ann", "operator", TOKEN))
    return Tokens(file)


def refusal(authority: Authority, seen) -> grpc.StatusCode:
    """Return the status with which a caller is refused."""
    with pytest.raises(CallEnded) as caught:
        authority.caller(seen)
    assert TOKEN not in caught.value.text
    return caught.value.code


def test_a_user_is_known_by_the_socket() -> None:
    """The server's own and root are admins, those of the group operators or what is said."""
    authority = Authority(lambda: 0.0, OWNER, users={"eve": "viewer"})
    found = [authority.caller(user(*each)) for each in ((OWNER, "svc"), (0, "root"), (7, "bob"))]
    assert [(each.identity, each.rank) for each in found] == [
        ("svc", "admin"),
        ("root", "admin"),
        ("bob", "operator"),
    ]
    assert authority.caller(user(8, "eve")).rank == "viewer"


def test_a_machine_is_known_by_its_certificate() -> None:
    """One whose names have no role has none here either."""
    authority = Authority(lambda: 0.0, OWNER, table([]))
    caller = authority.caller(machine("spiffe://tidegate/operator/ann"))
    assert (caller.identity, caller.rank) == ("spiffe://tidegate/operator/ann", "operator")
    assert authority.caller(machine("spiffe://tidegate/envoy")).rank == "none"


def test_without_tls_and_tokens_callers_are_anonymous_admins() -> None:
    """As on a loopback port that asks nothing; the author of their changes says so."""
    caller = Authority(lambda: 0.0, OWNER).caller(PLAIN)
    assert (caller.identity, caller.rank) == ("anonymous", "admin")
    assert caller.author("ann") == "anonymous (ann)"


def test_a_port_with_tokens_has_no_anonymous_callers(tokens: Tokens) -> None:
    """Neither without TLS nor with it."""
    authority = Authority(lambda: 0.0, OWNER, table([]), tokens)
    assert refusal(authority, PLAIN) is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(authority, machine()) is grpc.StatusCode.UNAUTHENTICATED
    without = Authority(lambda: 0.0, OWNER, table([]))
    assert refusal(without, machine()) is grpc.StatusCode.PERMISSION_DENIED


def test_a_token_comes_before_everything_else(tokens: Tokens) -> None:
    """It names a person where certificate and user name a machine; a wrong one is no other."""
    authority = Authority(lambda: 0.0, OWNER, table([]), tokens)
    for seen in (bearer(TOKEN), user(0, "root"), machine("spiffe://tidegate/admin"), PLAIN):
        with_token = replace(seen, authorization=f"bearer {TOKEN}")
        assert authority.caller(with_token).identity == "ann"
        wrong = replace(seen, authorization=f"Bearer {new_token()}")
        assert refusal(authority, wrong) is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_where_none_are_taken_is_refused() -> None:
    """Its holder believes to be someone; to go on as anonymous would hide the mistake."""
    assert refusal(Authority(lambda: 0.0, OWNER), bearer(TOKEN)) is grpc.StatusCode.UNAUTHENTICATED


def test_wrong_tokens_are_bounded_by_peer(tokens: Tokens) -> None:
    """Then not even the right one is looked at for a while; others are not concerned."""
    now = [0.0]
    authority = Authority(lambda: now[0], OWNER, None, tokens)
    for _ in range(MAX_FAILURES):
        assert refusal(authority, bearer(new_token())) is grpc.StatusCode.UNAUTHENTICATED
    assert refusal(authority, bearer(TOKEN)) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert authority.caller(bearer(TOKEN, "ipv4:10.0.0.8")).identity == "ann"
    assert authority.caller(replace(user(7, "b"), authorization=f"Bearer {TOKEN}"))
    now[0] = WINDOW_S
    assert authority.caller(bearer(TOKEN)).identity == "ann"


@given(st.text(max_size=200))
def test_no_header_makes_someone_of_nobody(tokens: Tokens, header: str) -> None:
    """But the right one."""
    authority = Authority(lambda: 0.0, OWNER, None, tokens)
    assert refusal(authority, replace(PLAIN, authorization=header))


def test_an_author_is_the_identity() -> None:
    """What the caller says is added, unless it is the same."""
    caller = Caller("a", "ann", "token")
    assert [caller.author(each) for each in ("", "ann", "root")] == ["ann", "ann", "ann (root)"]


@pytest.mark.parametrize("name", sorted({*OWN_AUTHORS, FALLBACK_AUTHOR}))
def test_nobody_is_taken_for_the_control_server(name: str) -> None:
    """A service's user is often called as the service; its fallbacks are known by their author."""
    assert Caller("a", name, "user").author("") == f"user {name}"
    assert Caller("a", name, "token").author("why") == f"token {name} (why)"
