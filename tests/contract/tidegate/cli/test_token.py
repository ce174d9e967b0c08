"""The operator's token of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.cli import token as module
from tidegate.cli.token import MAX_BYTES, token, with_token
from tidegate.terminal.errors import CliError
from xds_server.admin.access.tokens import Tokens, new_token

SECRET = new_token()


def test_without_variables_there_is_no_token() -> None:
    """As on a Unix socket."""
    assert token({}) is None
    assert token({"TIDEGATE_TOKEN": "", "TIDEGATE_TOKEN_FILE": ""}) is None


def test_a_token_comes_from_a_variable_or_a_file(tmp_path: Path) -> None:
    """Without the end of its line."""
    (tmp_path / "t").write_text(f"{SECRET}\n")
    assert token({"TIDEGATE_TOKEN": SECRET}) == SECRET
    assert token({"TIDEGATE_TOKEN_FILE": str(tmp_path / "t")}) == SECRET


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"\xff\xfe", b"a\nb", b"a\0b"])
def test_what_is_no_token_is_refused(tmp_path: Path, content: bytes) -> None:
    """It would end in an error of gRPC's; the message names the file and does not quote it."""
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(CliError, match="contains no token") as caught:
        token({"TIDEGATE_TOKEN_FILE": str(tmp_path / "t")})
    assert "words" not in caught.value.message


def test_a_token_file_is_read_to_its_bound(tmp_path: Path) -> None:
    """It may be the wrong file."""
    (tmp_path / "t").write_bytes(b"a" * (MAX_BYTES + 10))
    assert len(token({"TIDEGATE_TOKEN_FILE": str(tmp_path / "t")}) or "") == MAX_BYTES


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With the variable."""
    with pytest.raises(CliError, match=r"cannot read .*none \(TIDEGATE_TOKEN_FILE\)"):
        token({"TIDEGATE_TOKEN_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize("server", ["10.0.0.7:18010", "control.example:1"])
def test_a_token_is_not_sent_where_others_could_read_it(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS and on this machine it is."""
    monkeypatch.setattr(module, "token", lambda: SECRET)
    sent: list = []
    monkeypatch.setattr(module.grpc, "intercept_channel", lambda *given: sent.append(given))
    with pytest.raises(CliError, match="is not sent to") as caught:
        with_token(None, server, encrypted=False)  # type: ignore[arg-type]  # it is not looked at
    assert SECRET not in caught.value.message
    with_token(None, server, encrypted=True)  # type: ignore[arg-type]
    for local in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/s", "local"):
        with_token(None, local, encrypted=False)  # type: ignore[arg-type]
    assert len(sent) == 6


def test_a_call_presents_the_token(run, admin, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the header that servers look at."""
    monkeypatch.setenv("TIDEGATE_TOKEN", SECRET)
    run("undrain", "r1", "--server", admin.address)
    assert len(admin.requests) == 1
    assert admin.metadata[-1]["authorization"] == f"Bearer {SECRET}"


def test_tokens_makes_a_token_and_keeps_its_hash(run, tmp_path: Path) -> None:
    """A second one of the same name is valid beside it."""
    file = tmp_path / "tokens"
    file.write_text("# without an end of line")
    first = run("tokens", str(file), "ann", "--role", "operator").out.strip()
    second = run("tokens", str(file), "ann", "--role", "viewer", "--days", "3").out.strip()
    tokens = Tokens(file)
    assert [getattr(tokens.holder(each), "role", None) for each in (first, second)] == [
        "operator",
        "viewer",
    ]
    assert first not in file.read_text()


def test_a_new_token_file_is_for_its_owner(run, tmp_path: Path) -> None:
    """Its hashes are no secrets, but names and roles are nobody's business."""
    run("tokens", str(tmp_path / "tokens"), "ann")
    assert (tmp_path / "tokens").stat().st_mode & 0o777 == 0o600


def test_tokens_adds_nothing_to_a_file_that_is_wrong(run, tmp_path: Path) -> None:
    """The server would not take it."""
    file = tmp_path / "tokens"
    file.write_text("ann root\n")
    failed = run("tokens", str(file), "bob")
    assert (failed.code, "line 1" in failed.err) == (1, True)
    assert file.read_text() == "ann root\n"
    assert "a name has" in run("tokens", str(tmp_path / "new"), "a b").err
    assert not (tmp_path / "new").exists()


def test_a_socket_that_nobody_serves_is_named(run, tmp_path: Path) -> None:
    """With what would be right."""
    ran = run("status", "--server", f"unix:{tmp_path}/none")
    assert ran.code == 3
    assert f"cannot reach the control server at unix:{tmp_path}/none; start it with" in ran.err
    assert run("status", "--server", "unix:relative").code == 2
