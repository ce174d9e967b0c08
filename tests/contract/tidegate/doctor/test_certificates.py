"""Certificate files that a fleet names, made with the real ``openssl``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from support.certificates import Authority, openssl
from tidegate.doctor.certificates import NamedFiles, examine, files_of
from tidegate.doctor.diagnosis import Level
from xds_server.fleet.load import load_text


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Return one authority for the module."""
    return Authority(tmp_path_factory.mktemp("pki"), "ca")


def named(authority: Authority, name: str, days: float, left: float) -> NamedFiles:
    """Return files of a new certificate that only its owner reads."""
    pair = authority.aged(name, "DNS:triton.test", life_days=days, left_days=left)
    pair.key.chmod(0o600)
    return NamedFiles("listener.tls", None, str(pair.certificate), str(pair.key))


def test_sound_files_have_no_findings(authority: Authority) -> None:
    """Half of the life is left."""
    assert list(examine(named(authority, "sound", 90, 60))) == []


@pytest.mark.parametrize(
    ("left", "at", "level", "words"),
    [
        (60, -91, Level.FAULT, "later than this machine's clock"),
        (60, 61, Level.FAULT, "has expired on"),
        (5, 0, Level.RISK, "expires in"),
    ],
)
def test_the_time_of_a_certificate_is_examined(
    authority: Authority, left: float, at: float, level: Level, words: str
) -> None:
    """Not yet, no longer, not for long."""
    files = named(authority, f"aged{at}", 90, left)
    (found,) = examine(files, time.time() + at * 86_400)
    assert (found.about, found.level, words in found.says) == (files.certificate, level, True)


def test_files_that_do_not_fit_are_faults(authority: Authority, tmp_path: Path) -> None:
    """Missing, another's key, a key with a passphrase, no certificate."""
    one, other = named(authority, "one", 90, 60), named(authority, "other", 90, 60)
    locked, none = tmp_path / "locked.key", tmp_path / "none.crt"
    openssl("rsa", "-aes128", "-passout", "pass:x", "-in", _rsa(tmp_path), "-out", str(locked))
    none.write_text("no certificate")
    for files, words in (
        (one._replace(certificate=str(tmp_path / "away.crt")), "away.crt"),
        (one._replace(key=other.key), "is not the key of"),
        (one._replace(key=str(locked)), "has a passphrase"),
        (one._replace(ca=str(none)), "contains no certificates"),
    ):
        (found,) = examine(files)
        assert (found.level, found.about) == (Level.FAULT, "listener.tls")
        assert words in found.says


def _rsa(folder: Path) -> str:
    path = folder / "rsa.key"
    openssl("genrsa", "-out", str(path), "2048")
    return str(path)


def test_a_key_that_others_read_is_a_risk(authority: Authority) -> None:
    """The fix is a command."""
    files = named(authority, "open", 90, 60)
    assert files.key is not None
    Path(files.key).chmod(0o644)
    (found,) = examine(files)
    assert found.fix == f"run `chmod 600 {files.key}`"


def test_all_places_of_a_fleet_are_examined() -> None:
    """Listeners, pickers, gateways, pools."""
    fleet = load_text(
        """
listener:
  tls: {certificate: /a.crt, key: /a.key}
  further: [{name: inner, address: "127.0.0.1:10001", tls: {certificate: /b.crt, key: /b.key}}]
pickers: {tls: {ca: /c.crt}}
gateway: {http: ["127.0.0.1:9000"], grpc: ["127.0.0.1:9001"], tls: {ca: /d.crt}}
pools:
- name: a
  match: {models: [m]}
  upstream_tls: {ca: /e.crt}
  endpoints: [{http: "127.0.0.1:8000"}]
"""
    )
    assert [each.place for each in files_of(fleet)] == [
        "listener.tls",
        "listener.further[inner].tls",
        "pickers.tls",
        "gateway.tls",
        "pools[a].upstream_tls",
    ]
