"""Unix sockets and who connects to them."""

from __future__ import annotations

import os
import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from tidegate_api.addresses import ADMIN_ADDRESS
from tidegate_common import unix
from tidegate_common.unix import (
    LOCAL,
    MAX_PATH_BYTES,
    LocalUser,
    UnixListener,
    connected_user,
    foreign_folder,
    own_socket,
    path_of,
    resolved,
)


def test_the_default_address_is_the_users_socket() -> None:
    """Both packages name it, since neither imports the other."""
    assert ADMIN_ADDRESS == LOCAL
    assert resolved(LOCAL) == f"unix:{own_socket()}"
    assert resolved("127.0.0.1:1") == "127.0.0.1:1"


def test_each_user_has_a_socket_of_its_own() -> None:
    """Server and command line of one user meet without options, and whatever the environment."""
    assert own_socket(0) == Path("/run/tidegate/admin.sock")
    assert str(own_socket(4_000_000_000)).endswith("tidegate-4000000000/admin.sock")


@pytest.mark.parametrize("address", ["unix:", "unix:a.sock", "unix:/", "unix:/a\0b"])
def test_a_path_that_is_none_is_refused(address: str) -> None:
    """A relative one would depend on the folder in which a process was started."""
    with pytest.raises(ValueError, match="absolute path"):
        path_of(address)


def test_the_length_of_a_path_is_bounded() -> None:
    """The kernel would cut it or refuse it without a word about the bound."""
    longest = f"unix:/{'a' * (MAX_PATH_BYTES - 1)}"
    assert path_of(longest)
    with pytest.raises(ValueError, match="at most"):
        path_of(f"{longest}a")


def test_only_the_owner_may_open_a_socket(tmp_path: Path) -> None:
    """Whatever the umask, and its folder is made for the owner, too."""
    path = tmp_path / "new" / "s"
    was = os.umask(0)
    try:
        with closing(UnixListener(path)):
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    finally:
        os.umask(was)
    assert not path.exists()


def test_a_group_may_open_it_if_that_is_wanted(tmp_path: Path) -> None:
    """Through a folder in which it sees nothing else."""
    path = tmp_path / "new" / "s"
    with closing(UnixListener(path, os.getgid())):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert path.stat().st_gid == os.getgid()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o710


def test_a_socket_in_use_is_not_taken(tmp_path: Path) -> None:
    """A second server would take the operators from the first."""
    with closing(UnixListener(tmp_path / "s")), pytest.raises(OSError, match="in use"):
        UnixListener(tmp_path / "s")
    with closing(UnixListener(tmp_path / "s")):
        pass


def test_a_socket_that_was_left_is_replaced(tmp_path: Path) -> None:
    """A killed server leaves one."""
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "s"))
    with closing(UnixListener(tmp_path / "s")) as again, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(again.path))


def test_what_is_no_socket_is_not_removed(tmp_path: Path) -> None:
    """The path may be a mistake."""
    (tmp_path / "s").write_text("mine")
    with pytest.raises(FileExistsError, match="is no socket"):
        UnixListener(tmp_path / "s")
    assert (tmp_path / "s").read_text() == "mine"


def test_the_folder_of_another_user_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who makes it first would get the operators' calls."""
    own = tmp_path / "theirs" / "admin.sock"
    own.parent.mkdir()
    monkeypatch.setattr(unix, "own_socket", lambda: own)
    assert foreign_folder(own) is None
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert "belongs to another user" in str(foreign_folder(own))
    with pytest.raises(PermissionError, match="belongs to another user"):
        UnixListener(own)


def test_the_kernel_says_who_connects(tmp_path: Path) -> None:
    """With its process."""
    with closing(UnixListener(tmp_path / "s")) as served, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(served.path))
        accepted, _ = served.socket.accept()
        with accepted:
            assert connected_user(accepted) == LocalUser(os.getuid(), os.getpid())


def test_a_user_without_a_name_has_its_number() -> None:
    """Containers have such users."""
    assert LocalUser(4_000_000_000, 1).name == "uid 4000000000"
