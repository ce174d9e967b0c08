"""Where the API server is, and the credentials for it."""

from __future__ import annotations

import base64
import ssl
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.certificates import Authority
from xds_server.applications.discovery.kubernetes import access as under_test
from xds_server.applications.discovery.kubernetes.access import Access, AccessError, AccessFiles
from xds_server.fleet.model.kubernetes import KubernetesApi

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://10.96.0.1:443"
TOKEN = "abcd"  # noqa: S105 - of no server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A cluster's authority."""
    return Authority(tmp_path_factory.mktemp("authority"), "cluster")


def read(environment: dict[str, str] | None = None, account: Path | None = None, **api: Any) -> Any:
    """Read once."""
    files = AccessFiles(KubernetesApi.model_validate(api), environment or {}, account)
    return files.read()


def kubeconfig(
    path: Path, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None
) -> str:
    """Write a kubeconfig with one context; return its path."""
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": URL, **(cluster or {})}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(config))
    return str(path)


@pytest.mark.parametrize(
    ("host", "url"), [("10.96.0.1", "https://10.96.0.1:443"), ("fd00::1", "https://[fd00::1]:443")]
)
def test_a_pod_asks_its_own_cluster(
    tmp_path: Path, authority: Authority, host: str, url: str
) -> None:
    """By its service account's token, checked by its certificates."""
    (tmp_path / "token").write_text("t0ken\n")
    (tmp_path / "ca.crt").write_bytes(authority.own.certificate.read_bytes())
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    access = read(environment, tmp_path)
    assert (access.url, access.token) == (url, "t0ken")
    assert access.context.verify_mode is ssl.CERT_REQUIRED
    assert access.context.check_hostname


def test_outside_of_a_cluster_a_server_is_named() -> None:
    """The error says how."""
    with pytest.raises(AccessError, match=r"in no Kubernetes cluster.*kubeconfig"):
        read()


def test_a_url_with_its_files(tmp_path: Path, authority: Authority) -> None:
    """Without a token file there is no token."""
    (tmp_path / "token").write_text(TOKEN)
    ca = str(authority.own.certificate)
    assert read(url=URL, token_file=str(tmp_path / "token"), ca_file=ca).token == TOKEN
    assert read(url=URL, ca_file=ca).token is None
    assert read(url="http://127.0.0.1:8001") == Access("http://127.0.0.1:8001", None, None)


def test_a_token_is_read_each_time(tmp_path: Path, authority: Authority) -> None:
    """The TLS context is not made again: only its own files change it."""
    file, ca = tmp_path / "token", tmp_path / "ca.crt"
    ca.write_bytes(authority.own.certificate.read_bytes())
    file.write_text("one")
    files = AccessFiles(KubernetesApi(url=URL, token_file=str(file), ca_file=str(ca)))
    first = files.read()
    file.write_text("two")
    second = files.read()
    assert (first.token, second.token) == ("one", "two")
    assert second.context is first.context
    ca.write_bytes(Authority(tmp_path, "next").own.certificate.read_bytes())
    assert files.read().context is not first.context


@pytest.mark.parametrize("text", ["", "\n", "two words", "a\r\nX-Other: b", "schl\u00fcssel"])
def test_what_is_no_token(tmp_path: Path, text: str) -> None:
    """It would end a header, or begin another; the error does not quote it."""
    (tmp_path / "token").write_text(text)
    with pytest.raises(AccessError, match="has no token") as caught:
        read(url=URL, token_file=str(tmp_path / "token"))
    assert "Other" not in str(caught.value)


def test_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the bound a token is read, above it is not."""
    file = tmp_path / "token"
    monkeypatch.setattr(under_test._file, "__defaults__", (4,))
    monkeypatch.setattr(under_test, "MAX_TOKEN", 4)
    file.write_text(TOKEN)
    assert read(url="http://127.0.0.1:1", token_file=str(file)).token == TOKEN
    file.write_text(f"{TOKEN}e")
    with pytest.raises(AccessError, match="larger than 4 bytes"):
        read(url="http://127.0.0.1:1", token_file=str(file))


def test_a_kubeconfig_with_a_token(tmp_path: Path, authority: Authority) -> None:
    """Certificates as data, and the name that the server's must have."""
    data = base64.b64encode(authority.own.certificate.read_bytes()).decode()
    cluster = {"certificate-authority-data": data, "tls-server-name": "kubernetes"}
    access = read(kubeconfig=kubeconfig(tmp_path / "config", cluster, {"token": "t"}))
    assert (access.url, access.token, access.server_name) == (URL, "t", "kubernetes")
    assert len(access.context.get_ca_certs()) == 1


def test_a_kubeconfig_names_files_beside_itself(tmp_path: Path, authority: Authority) -> None:
    """Relative paths are relative to it, as kubectl reads them."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ca.pem").write_bytes(authority.own.certificate.read_bytes())
    cluster, user = {"certificate-authority": "ca.pem"}, {"tokenFile": "token"}
    assert read(kubeconfig=kubeconfig(tmp_path / "config", cluster, user)).token == TOKEN


def test_a_kubeconfig_with_a_client_certificate(tmp_path: Path, authority: Authority) -> None:
    """OpenSSL reads certificate and key from one file, which is removed."""
    pair = authority.sign("admin", "DNS:admin")
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    assert read(kubeconfig=kubeconfig(tmp_path / "config", {}, user)).token is None
    other = authority.sign("other", "DNS:other")
    user["client-key"] = str(other.key)
    with pytest.raises(AccessError, match="does not fit its key"):
        read(kubeconfig=kubeconfig(tmp_path / "config", {}, user))


@pytest.mark.parametrize(
    ("cluster", "user", "reason"),
    [
        ({}, {"exec": {"command": "aws"}}, "gets credentials by `exec`"),
        ({"insecure-skip-tls-verify": True}, {}, "is not supported"),
        ({"server": "http://10.0.0.1"}, {}, "write https"),
        ({"server": None}, {}, "server: "),
        ({"certificate-authority-data": "%"}, {}, "is not base64"),
        ({"certificate-authority-data": "YWJj"}, {}, "no certificates in PEM"),
        ({"certificate-authority": "none.pem"}, {}, "cannot be read"),
        ({}, {"tokenFile": "none"}, "cannot be read"),
    ],
)
def test_kubeconfigs_that_are_refused(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], reason: str
) -> None:
    """Nothing is run, and no server is trusted unchecked."""
    with pytest.raises(AccessError, match=reason):
        read(kubeconfig=kubeconfig(tmp_path / "config", cluster, user))


@pytest.mark.parametrize(
    "text", ["", "[]", "a: [", "current-context: x", "current-context: 5", "\ud7ff: &a [*a]", "{}"]
)
def test_files_that_are_no_kubeconfig(tmp_path: Path, text: str) -> None:
    """One sentence, with the file's name."""
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(AccessError, match="config"):
        read(kubeconfig=str(path))


def test_a_context_is_found_by_its_name(tmp_path: Path) -> None:
    """The error names the one that is missing."""
    path = kubeconfig(tmp_path / "config")
    assert read(kubeconfig=path, context="c").url == URL
    with pytest.raises(AccessError, match="no context named 'other'"):
        read(kubeconfig=path, context="other")
