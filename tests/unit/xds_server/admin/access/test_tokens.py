"""Bearer tokens and the file of their hashes."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from xds_server.admin.access.tokens import (
    MAX_BYTES,
    MAX_TOKENS,
    Tokens,
    TokensError,
    line_of,
    new_token,
    parse,
)

NEW_YEAR_S = 1_798_761_600.0  # 2027-01-01T00:00Z


def made(tmp_path: Path, *lines: str, now: float = 0.0) -> Tokens:
    """Return the tokens of a file of these lines."""
    file = tmp_path / "tokens"
    file.write_text("".join(f"{line}\n" for line in lines))
    return Tokens(file, lambda: now)


def test_a_token_says_its_name_and_role(tmp_path: Path) -> None:
    """Another one says nothing."""
    token = new_token()
    tokens = made(tmp_path, "# people", "", line_of("ann", "operator", token) + "  # laptop")
    held = tokens.holder(token)
    assert held is not None
    assert (held.name, held.role) == ("ann", "operator")
    assert tokens.holder(new_token()) is None


@pytest.mark.parametrize("presented", ["", "tgt_", "x" * 10_000, "tgt_" + "é" * 43, "\0"])
def test_what_is_no_token_is_nobodys(tmp_path: Path, presented: str) -> None:
    """It is not even hashed."""
    assert made(tmp_path, line_of("ann", "admin", new_token())).holder(presented) is None


def test_two_tokens_of_one_name_are_valid_at_a_time(tmp_path: Path) -> None:
    """So that one can be replaced without a gap; a deleted line ends its token."""
    old, new = new_token(), new_token()
    lines = [line_of("ann", "admin", each) for each in (old, new)]
    tokens = made(tmp_path, *lines)
    assert tokens.holder(old)
    assert tokens.holder(new)
    (tmp_path / "tokens").write_text(lines[1])
    assert [tokens.look(), tokens.look()] == [False, True]
    assert tokens.holder(old) is None
    assert tokens.holder(new)


def test_a_token_ends_with_its_day(tmp_path: Path) -> None:
    """In UTC, that day included."""
    token = new_token()
    line = f"{line_of('ann', 'viewer', token)} until=2026-12-31"
    assert made(tmp_path, line, now=NEW_YEAR_S - 1).holder(token)
    assert made(tmp_path, line, now=NEW_YEAR_S).holder(token) is None


def test_a_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    """An editor may have written half of it; it is said once, and nothing of it is quoted."""
    token = new_token()
    tokens = made(tmp_path, line_of("ann", "admin", token))
    (tmp_path / "tokens").write_text("ann root sha256:secret")
    with capture_logs() as logs:
        assert not any(tokens.look() for _ in range(4))
    assert [each["event"] for each in logs] == ["tokens_not_taken"]
    assert "line 1" in logs[0]["reason"]
    assert "secret" not in str(logs)
    assert tokens.holder(token)
    (tmp_path / "tokens").unlink()
    assert not any(tokens.look() for _ in range(3))
    assert tokens.holder(token)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ann admin", "NAME ROLE sha256:HEX"),
        ("a b c d e", "NAME ROLE sha256:HEX"),
        ("-ann admin sha256:" + "0" * 64, "a name has"),
        ("ann envoy sha256:" + "0" * 64, "the role is one of"),
        ("ann admin sha256:" + "0" * 63, "64 hexadecimal"),
        ("ann admin md5:" + "0" * 64, "64 hexadecimal"),
        ("ann admin sha256:" + "0" * 64 + " until=tomorrow", "the end is a day"),
        ("ann admin sha256:" + "0" * 64 + " 2027-01-31", "the end is a day"),
    ],
)
def test_a_wrong_line_is_refused(line: str, said: str) -> None:
    """With its number, and what would be right."""
    with pytest.raises(TokensError, match=said) as caught:
        parse(f"# first\n{line}", "tokens")
    assert "tokens, line 2" in str(caught.value)
    assert "0" * 63 not in str(caught.value)


def test_the_file_is_bounded(tmp_path: Path) -> None:
    """In tokens and in bytes."""
    line = line_of("ann", "viewer", new_token())
    assert len(parse("\n".join([line] * MAX_TOKENS), "f")) == MAX_TOKENS
    with pytest.raises(TokensError, match="are possible"):
        parse("\n".join([line] * (MAX_TOKENS + 1)), "f")
    assert made(tmp_path, "#" * (MAX_BYTES - 1))
    with pytest.raises(TokensError, match="larger than"):
        made(tmp_path, "#" * MAX_BYTES)


def test_a_file_that_everyone_can_write_is_refused(tmp_path: Path) -> None:
    """Anybody could make themselves an admin."""
    made(tmp_path)
    (tmp_path / "tokens").chmod(0o666)
    with pytest.raises(TokensError, match="can be written by everyone"):
        Tokens(tmp_path / "tokens")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A server that was told of one must not start without it."""
    with pytest.raises(TokensError, match="cannot be read"):
        Tokens(tmp_path / "none")


@given(st.text(max_size=300))
def test_no_text_is_more_than_refused(text: str) -> None:
    """Whatever is in the file, other errors would end the server."""
    with contextlib.suppress(TokensError):
        parse(text, "f")
