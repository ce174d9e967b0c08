"""Certificates for development."""

from __future__ import annotations

import contextlib
import shutil
import ssl
import stat

import pytest

from tidegate.stack import certificates
from tidegate.stack.certificates import MACHINES, CertificateError, make
from tidegate_common.tls.files import Identity, TlsFiles
from tidegate_common.tls.roles import EVERY, Peer, table


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make certificates once for the tests that only read them."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl command is not installed")
    folder = tmp_path_factory.mktemp("certs")
    make(folder, ["picker.infer", "10.0.0.7"])
    return folder


def files_of(folder, name: str) -> TlsFiles:
    return TlsFiles(folder / name / "tls.crt", folder / name / "tls.key", folder / "ca.crt")


def names_of(folder, server: str) -> list[tuple[str, str]]:
    """Return the names that a client of this server reads in its certificate."""
    side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    side.load_cert_chain(folder / server / "tls.crt", folder / server / "tls.key")
    trusting = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(to_client, to_server, server_hostname=f"{server}.tidegate")
    peer = side.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for each in (client, peer):
            with contextlib.suppress(ssl.SSLWantReadError):
                each.do_handshake()
    return list(client.getpeercert()["subjectAltName"])


def test_each_machine_gets_files_that_its_service_takes(made) -> None:
    """Certificate and key fit together and are signed by the authority."""
    for name in MACHINES:
        Identity(files_of(made, name))


def test_a_certificate_has_the_role_of_its_folder_and_no_other(made) -> None:
    """The control server's has none."""
    for name in MACHINES:
        found = names_of(made, name)
        uris = tuple(value for kind, value in found if kind == "URI")
        dns = tuple(value for kind, value in found if kind == "DNS")
        assert table([]).of(Peer(uris, dns)) == ({name} & EVERY)


def test_servers_are_found_by_name_and_address(made) -> None:
    """On this machine, and by the hosts that were given."""
    found = set(names_of(made, "picker"))
    assert {("DNS", "localhost"), ("IP Address", "127.0.0.1"), ("DNS", "picker.infer")} <= found
    assert ("IP Address", "10.0.0.7") in found


def test_a_folder_has_all_that_a_machine_needs(made) -> None:
    """It is mounted alone, without the authority's key."""
    for name in MACHINES:
        files = {path.name: path for path in (made / name).iterdir()}
        assert files.keys() == {"ca.crt", "tls.crt", "tls.key"}
        assert files["ca.crt"].read_bytes() == (made / "ca.crt").read_bytes()


def test_keys_are_for_their_owner_only(made) -> None:
    """Others on the machine could act as the service else."""
    keys = [made / "ca.key", *(made / name / "tls.key" for name in MACHINES)]
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}


def test_another_run_renews_certificates_and_keeps_the_authority(made, tmp_path) -> None:
    """What trusts the authority goes on."""
    folder = tmp_path / "copy"
    shutil.copytree(made, folder)
    before = (folder / "ca.crt").read_bytes(), (folder / "envoy" / "tls.crt").read_bytes()
    make(folder)
    assert (folder / "ca.crt").read_bytes() == before[0]
    assert (folder / "envoy" / "tls.crt").read_bytes() != before[1]
    left = sorted(path.name for path in (folder / "envoy").iterdir())
    assert left == ["ca.crt", "tls.crt", "tls.key"]


@pytest.mark.parametrize("host", ["", "a,DNS:evil", "a b", "a\nb", "x" * 254])
def test_a_host_that_is_none_is_refused(tmp_path, host: str) -> None:
    """It becomes part of a file that openssl reads."""
    with pytest.raises(CertificateError, match="hosts are"):
        make(tmp_path, [host])


def test_without_openssl_the_error_says_so(tmp_path, monkeypatch) -> None:
    """It is no Python package that pip would bring."""
    monkeypatch.setattr(certificates.shutil, "which", lambda _: None)
    with pytest.raises(CertificateError, match="openssl"):
        make(tmp_path)
