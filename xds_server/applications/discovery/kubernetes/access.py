"""Where the API server is, and the credentials for it: files that are read again.

Rules:

1. Each request has what the files say at that time: projected tokens are replaced hourly, and
   certificates now and then. A TLS context is made anew only if the files of it changed.
2. A file is bounded: tokens by ``MAX_TOKEN``, others by ``MAX_FILE`` bytes.
3. What is wrong is one sentence that names the file and what would be right. No error quotes a
   token.
4. Commands of a kubeconfig (``exec``, ``auth-provider``) are not run, and an unchecked certificate
   is not accepted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml
from pydantic import TypeAdapter, ValidationError

from xds_server.fleet.model.kubernetes import ApiUrl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from xds_server.fleet.model.kubernetes import KubernetesApi

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the token and the certificates of its service account."""
MAX_TOKEN: Final = 65_536
MAX_FILE: Final = 2**20

_URL: Final = TypeAdapter[str](ApiUrl)


class AccessError(Exception):
    """The API server or the credentials are not known; the message says why."""


@dataclass(frozen=True, slots=True)
class Access:
    """All that a request needs."""

    url: str
    token: str | None
    context: ssl.SSLContext | None
    """``None`` for HTTP, which is for loopback alone."""
    server_name: str | None = None
    """Name that the server's certificate must have, if not the URL's."""


@dataclass(frozen=True, slots=True)
class _Tls:
    """What a TLS context is made of."""

    ca: bytes | None
    certificate: bytes | None = None
    key: bytes | None = None

    def digest(self) -> bytes:
        parts = (self.ca, self.certificate, self.key)
        return b"".join(hashlib.sha256(part or b"").digest() for part in parts)


class AccessFiles:
    """Reads what ``api`` names; see the module's rules.

    Args:
        api: The pool's settings.
        environment: The process's environment.
        account: Folder of the pod's service account.
        elsewhere: How an operator names the API server from outside of a cluster.
    """

    def __init__(
        self,
        api: KubernetesApi,
        environment: Mapping[str, str] = os.environ,
        account: Path = ACCOUNT,
        elsewhere: str = "`api: {kubeconfig: FILE}` or `api: {url: ..., ...}`",
    ) -> None:
        self._api = api
        self._environment = environment
        self._account = account
        self._elsewhere = elsewhere
        self._context: tuple[bytes, ssl.SSLContext] | None = None

    def read(self) -> Access:
        """Return what to use now; it reads files, so call it in a thread.

        Raises:
            AccessError: Something is missing or unusable.
        """
        if self._api.kubeconfig is not None:
            return self._from_kubeconfig(Path(self._api.kubeconfig))
        if self._api.url is not None:
            token, ca = self._api.token_file, self._api.ca_file
            return self._made(
                self._api.url,
                _token(Path(token)) if token is not None else None,
                _Tls(_file(Path(ca)) if ca is not None else None),
            )
        return self._in_cluster()

    def _in_cluster(self) -> Access:
        host = self._environment.get("KUBERNETES_SERVICE_HOST")
        port = self._environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise AccessError(
                "this process is in no Kubernetes cluster (KUBERNETES_SERVICE_HOST is not set): "
                f"name the API server by {self._elsewhere}"
            )
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        token = _token(self._account / "token")
        return self._made(url, token, _Tls(_file(self._account / "ca.crt")))

    def _from_kubeconfig(self, path: Path) -> Access:
        config = _parsed(path)
        wanted = self._api.context or config.get("current-context")
        if not isinstance(wanted, str) or not wanted:
            raise AccessError(f"{path} has no current-context: name one by `context`")
        context = _named(config, path, "contexts", "context", wanted)
        cluster = _named(config, path, "clusters", "cluster", context.get("cluster"))
        user = _named(config, path, "users", "user", context.get("user"))
        for key in ("exec", "auth-provider"):
            if key in user:
                raise AccessError(
                    f"{path}: the user of context {wanted!r} gets credentials by `{key}`, which "
                    "Tidegate does not run: use a service account's token file"
                )
        if cluster.get("insecure-skip-tls-verify"):
            raise AccessError(
                f"{path}: insecure-skip-tls-verify is not supported: give the cluster's "
                "certificate-authority"
            )
        try:
            url = _URL.validate_python(cluster.get("server"))
        except ValidationError as error:
            raise AccessError(f"{path}: the cluster's server: {error.errors()[0]['msg']}") from None
        tls = _Tls(
            _content(path, cluster, "certificate-authority"),
            _content(path, user, "client-certificate"),
            _content(path, user, "client-key"),
        )
        name = cluster.get("tls-server-name")
        return self._made(
            url, _user_token(path, user), tls, name if isinstance(name, str) else None
        )

    def _made(self, url: str, token: str | None, tls: _Tls, name: str | None = None) -> Access:
        if url.startswith("http:"):
            return Access(url, token, None)
        digest = tls.digest()
        if self._context is None or self._context[0] != digest:
            self._context = (digest, _context(tls))
        return Access(url, token, self._context[1], name)


def _context(tls: _Tls) -> ssl.SSLContext:
    try:
        ca = tls.ca.decode("ascii") if tls.ca is not None else None
        context = ssl.create_default_context(cadata=ca)
    except (ValueError, ssl.SSLError):
        raise AccessError("the API server's CA file has no certificates in PEM") from None
    # Clusters' own authorities often lack extensions that Python 3.13 asks for by default.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if tls.certificate is not None:
        # OpenSSL reads these from files only; the file is this user's alone and removed at once.
        with tempfile.NamedTemporaryFile() as file:
            file.write(tls.certificate + b"\n" + (tls.key or b""))
            file.flush()
            try:
                context.load_cert_chain(file.name, password="")
            except (ssl.SSLError, ValueError):
                raise AccessError(
                    "the client certificate for the API server does not fit its key, or one of "
                    "them is not PEM"
                ) from None
    return context


def _parsed(path: Path) -> dict[str, Any]:
    try:
        config = yaml.safe_load(_file(path))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise AccessError(f"{path} is no kubeconfig")
    return config


def _named(
    config: dict[str, Any], path: Path, group: str, key: str, name: object
) -> dict[str, Any]:
    listed = config.get(group)
    for each in listed if isinstance(listed, list) else ():
        if isinstance(each, dict) and each.get("name") == name:
            found = each.get(key)
            return found if isinstance(found, dict) else {}
    raise AccessError(f"{path} has no {key} named {name!r}")


def _content(path: Path, owner: dict[str, Any], key: str) -> bytes | None:
    """Return what a kubeconfig holds as data or names as a file; relative to its own folder."""
    data, file = owner.get(f"{key}-data"), owner.get(key)
    if isinstance(data, str) and data:
        try:
            return base64.b64decode(data, validate=True)
        except binascii.Error:
            raise AccessError(f"{path}: {key}-data is not base64") from None
    return _file(path.parent / file) if isinstance(file, str) and file else None


def _user_token(path: Path, user: dict[str, Any]) -> str | None:
    file, token = user.get("tokenFile"), user.get("token")
    if isinstance(file, str) and file:
        return _token(path.parent / file)
    return _checked(token, path) if isinstance(token, str) and token else None


def _token(path: Path) -> str:
    try:
        text = _file(path, MAX_TOKEN).decode("ascii").strip()
    except UnicodeDecodeError:
        text = ""
    return _checked(text, path)


def _checked(token: str, path: Path) -> str:
    """Return a token that can stand in a header."""
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise AccessError(f"{path} has no token: expected one line of printable characters")
    return token


def _file(path: Path, limit: int = MAX_FILE) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise AccessError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > limit:
        raise AccessError(f"{path} is larger than {limit} bytes")
    return content
