"""Bearer tokens of operators, from a file of their hashes that may be edited while the server runs.

A line is ``NAME ROLE sha256:HEX``, and may end with ``until=YYYY-MM-DD`` (UTC, that day included).
Text from ``#`` on is a comment. A name may have several lines: each of its tokens is valid.

Rules:

1. The file contains hashes. A token has 256 random bits, so that its hash cannot be turned back,
   and needs no salt and no slow function.
2. A token is compared with all hashes, each in constant time.
3. The file is read as a whole. One that cannot be used changes nothing: what was in force stays,
   and the fault is logged once.
4. A change counts once the file is found unchanged at a second look.
5. No token is logged, and no message contains a part of one or of its hash.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import hmac
import re
import secrets
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from tidegate_common.tls.roles import READERS, Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PREFIX: Final = "tgt_"
"""Begin of every token, by which scanners of repositories find one."""
MAX_TOKENS: Final = 256
MAX_BYTES: Final = 64 * 1024
"""Most bytes of the file."""
LOOK_S: Final = 1.0
"""Interval of looks at the file, seconds: a change is in force after at most two."""

_TOKEN: Final = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}", re.ASCII)
_HASH: Final = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_MAX_WORDS: Final = 4

_log = structlog.stdlib.get_logger(__name__)


class TokensError(Exception):
    """A token file that cannot be used; the message says which line, and never quotes it."""


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One token of a person or a program."""

    name: str
    role: Role
    digest: str = field(repr=False)
    until: float | None = None
    """Unix seconds at which it ends; ``None`` = it does not."""


def new_token() -> str:
    """Return a new token: ``tgt_`` and 43 characters."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """Return the hash that stands for a token, in hexadecimal."""
    return hashlib.sha256(token.encode()).hexdigest()


def line_of(name: str, role: str, token: str, until: dt.date | None = None) -> str:
    """Return the file's line for a token.

    Raises:
        TokensError: The name or the role is not valid.
    """
    end = "" if until is None else f" until={until.isoformat()}"
    line = f"{name} {role} sha256:{digest_of(token)}{end}"
    _named(name, "the token")
    _parsed_line(line, "the token")
    return line


def parse(text: str, source: str) -> tuple[TokenLine, ...]:
    """Return the tokens of a file.

    Args:
        text: Its content.
        source: Its name, for messages.

    Raises:
        TokensError: A line is not valid, or there are more than ``MAX_TOKENS``.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].strip()
        if words:
            found.append(_parsed_line(words, f"{source}, line {number}"))
    if len(found) > MAX_TOKENS:
        raise TokensError(f"{source} has {len(found)} tokens; {MAX_TOKENS} are possible")
    return tuple(found)


def _named(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise TokensError(f"{where}: a name has 1 to 64 letters, digits and . _ @ + -")


def _parsed_line(line: str, where: str) -> TokenLine:
    words = line.split()
    if not _MAX_WORDS - 1 <= len(words) <= _MAX_WORDS:
        raise TokensError(f"{where}: write NAME ROLE sha256:HEX, and until=YYYY-MM-DD if it ends")
    name, role, hashed = words[:3]
    _named(name, where)
    if role not in READERS:
        raise TokensError(f"{where}: the role is one of viewer, operator, admin")
    digest = _HASH.fullmatch(hashed)
    if digest is None:
        raise TokensError(f"{where}: a hash is sha256: and 64 hexadecimal digits in lower case")
    until = None
    if len(words) == _MAX_WORDS:
        until = _end_of(words[3], where)
    return TokenLine(name, role, digest[1], until)


def _end_of(word: str, where: str) -> float:
    try:
        day = dt.date.fromisoformat(word.removeprefix("until=") if word[:6] == "until=" else "")
        end = dt.datetime.combine(day, dt.time(), dt.UTC)
        return (end + dt.timedelta(days=1)).timestamp()
    except (ValueError, OverflowError):
        raise TokensError(f"{where}: the end is a day, as in until=2027-01-31") from None


class Tokens:
    """What is in force of a token file; see the module's rules.

    Args:
        path: The file.
        wall_clock: Unix seconds.

    Raises:
        TokensError: The file cannot be used.
    """

    def __init__(self, path: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._wall_clock = wall_clock
        self._seen = self._held = self._stamp()
        self.fault = ""
        """Why the file of now is not in force; empty if it is."""
        self._lines = self._read()

    def holder(self, token: str) -> TokenLine | None:
        """Return whose token this is; ``None`` = nobody's, or it has ended."""
        digest = digest_of(token) if _TOKEN.fullmatch(token) else ""
        found, now = None, self._wall_clock()
        for line in self._lines:
            same = hmac.compare_digest(line.digest, digest)
            if same and (line.until is None or now < line.until):
                found = line
        return found

    def look(self) -> bool:
        """Look at the file; return whether another one came into force."""
        stamp = self._stamp()
        if stamp == self._held:
            self._seen, self.fault = stamp, ""
            return False
        if stamp != self._seen:
            self._seen = stamp
            return False
        try:
            self._lines = self._read()
        except TokensError as error:
            if str(error) != self.fault:
                self.fault = str(error)
                _log.error("tokens_not_taken", reason=self.fault)
            return False
        self._held, self.fault = stamp, ""
        _log.info("tokens_taken", file=str(self._path), tokens=len(self._lines))
        return True

    async def follow(self) -> None:
        """Look at the file until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_ino, found.st_mtime_ns, found.st_size)

    def _read(self) -> tuple[TokenLine, ...]:
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
                mode = stat.S_IMODE(self._path.stat().st_mode)
        except OSError as error:
            raise TokensError(f"{self._path} cannot be read: {error.strerror}") from None
        if len(raw) > MAX_BYTES:
            raise TokensError(f"{self._path} is larger than {MAX_BYTES} bytes")
        if mode & stat.S_IWOTH:
            raise TokensError(f"{self._path} can be written by everyone; chmod o-w {self._path}")
        try:
            return parse(raw.decode(), str(self._path))
        except UnicodeDecodeError:
            raise TokensError(f"{self._path} is no text (UTF-8)") from None
