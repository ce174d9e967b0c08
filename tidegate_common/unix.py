"""Unix sockets: the address of each user's own, sockets with permissions, and who connects to them.

Rules:

1. A socket is opened with its permissions: there is no moment in which others could connect.
2. One process listens at a path. It holds a lock beside the socket, so that a socket which an ended
   process has left is replaced, and one in use is not.
3. The folder of a user's own socket belongs to that user. Another one is refused, by servers and
   by clients.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import socket
import stat
import struct
from pathlib import Path
from typing import Final, NamedTuple

LOCAL: Final = "local"
"""The address that stands for the socket of the user who runs the process."""
SCHEME: Final = "unix:"
MAX_PATH_BYTES: Final = 107
"""Longest path of a socket (Linux: 108 with the zero at its end)."""
BACKLOG: Final = 128
_NAME: Final = "admin.sock"
_CREDENTIALS: Final = struct.Struct("3i")


class LocalUser(NamedTuple):
    """The process at the other end of a Unix socket, as the kernel names it."""

    uid: int
    pid: int

    @property
    def name(self) -> str:
        """The user's name, ``uid N`` if it has none. Reads the user database, which may block."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except (KeyError, OSError):
            return f"uid {self.uid}"


def own_socket(uid: int | None = None) -> Path:
    """Return the path of a user's own socket; ``None`` = of the user who runs this process."""
    number = os.getuid() if uid is None else uid
    if number == 0:
        return Path("/run/tidegate", _NAME)
    run = Path("/run/user", str(number))
    if run.is_dir():
        return run / "tidegate" / _NAME
    return Path(f"/tmp/tidegate-{number}", _NAME)  # noqa: S108 - its owner is checked, see rule 3


def is_unix(address: str) -> bool:
    """Return whether an address is that of a Unix socket."""
    return address == LOCAL or address.startswith(SCHEME)


def resolved(address: str) -> str:
    """Return an address in which ``local`` is replaced by the user's own socket."""
    return f"{SCHEME}{own_socket()}" if address == LOCAL else address


def path_of(address: str) -> Path:
    """Return the path of ``local`` or ``unix:PATH``.

    Raises:
        ValueError: It has no absolute path, or a path that is too long for a socket.
    """
    path = resolved(address).removeprefix(SCHEME)
    if not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise ValueError(f"'{address:.200}' needs an absolute path, as in unix:/run/tidegate.sock")
    if len(os.fsencode(path)) > MAX_PATH_BYTES:
        raise ValueError(f"'{address:.200}': a socket's path has at most {MAX_PATH_BYTES} bytes")
    return Path(os.path.normpath(path))


def foreign_folder(path: Path) -> str | None:
    """Return why a user's own socket is not to be trusted; ``None`` if it is, or is not there."""
    if path != own_socket():
        return None
    with contextlib.suppress(FileNotFoundError):
        found = path.parent.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return f"{path.parent} belongs to another user; remove it, or name another socket"
    return None


class UnixListener:
    """A listening socket at a path; see the module's rules.

    Args:
        path: Where it is; missing folders are made for the owner, and the group if there is one.
        group: Id of the group that may connect; ``None`` = the owner alone.

    Raises:
        OSError: The path is in use, is no socket, or cannot be made.
    """

    def __init__(self, path: Path, group: int | None = None) -> None:
        self.path = path
        with contextlib.ExitStack() as undone:
            _folder(path, group)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(f"{path}.lock", flags, 0o600)
            undone.callback(os.close, self._lock)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(f"{path} is in use by another process") from None
            _remove(path)
            self.socket = undone.enter_context(socket.socket(socket.AF_UNIX))
            self.socket.setblocking(False)
            os.fchmod(self.socket.fileno(), 0o600)  # before it has a path
            self.socket.bind(str(path))
            undone.callback(path.unlink, missing_ok=True)
            path.chmod(0o600)
            if group is not None:
                os.chown(path, -1, group)
                path.chmod(0o660)
            self.socket.listen(BACKLOG)
            undone.pop_all()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        self.socket.close()
        os.close(self._lock)


def connected_user(connection: socket.socket) -> LocalUser:
    """Return who connected; the kernel has recorded it at that moment (``SO_PEERCRED``)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return LocalUser(uid, pid)


def _folder(path: Path, group: int | None) -> None:
    folder = path.parent
    made = not folder.exists()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (reason := foreign_folder(path)) is not None:
        raise PermissionError(reason)
    if group is not None and (made or path == own_socket()):
        os.chown(folder, -1, group)
        folder.chmod(0o710)


def _remove(path: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise FileExistsError(f"{path} exists and is no socket")
        path.unlink()
