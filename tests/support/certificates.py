"""Test certificates, created with the ``openssl`` command."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and its key (PEM)."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority with its own folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.own = Pair(folder / f"{name}.crt", folder / f"{name}.key")
        files = ("-keyout", str(self.own.key), "-out", str(self.own.certificate))
        openssl("req", "-x509", *_KEY, *files, "-subj", f"/CN={name}", "-days", "1")

    def sign(self, name: str, *subject_names: str, days: int = 1) -> Pair:
        """Return a new certificate for names such as ``DNS:triton.test`` or ``IP:127.0.0.1``.

        Args:
            name: Of its files.
            subject_names: Its subject alternative names.
            days: How long it is valid; -1 = it ended a day ago.
        """
        pair = Pair(self._folder / f"{name}.crt", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(subject_names)}\n")
        openssl(
            *("req", "-new", *_KEY, "-keyout", str(pair.key), "-out", str(request)),
            *("-subj", f"/CN={name}"),
        )
        openssl(
            *("x509", "-req", "-in", str(request), "-out", str(pair.certificate)),
            *("-days", str(days)),
            *("-CA", str(self.own.certificate), "-CAkey", str(self.own.key), "-CAcreateserial"),
            *("-extfile", str(extensions)),
        )
        return pair

    def aged(self, name: str, *subject_names: str, life_days: float, left_days: float) -> Pair:
        """Return a certificate of which only a part of its life is left.

        Args:
            name: Of its files.
            subject_names: Its subject alternative names.
            life_days: From its begin to its end.
            left_days: From now to its end.
        """
        pair = self.sign(name, *subject_names)
        folder = self._folder / f"{name}-ca"
        folder.mkdir(exist_ok=True)
        (folder / "index.txt").write_text("")
        (folder / "index.txt.attr").write_text("unique_subject = no\n")
        config = folder / "ca.conf"
        config.write_text(
            "[ca]\ndefault_ca = own\n[own]\n"
            f"database = {folder}/index.txt\nnew_certs_dir = {folder}\nrand_serial = yes\n"
            "default_md = sha256\npolicy = any\n[any]\ncommonName = supplied\n"
        )
        ends = time.time() + left_days * 86_400
        begins = ends - life_days * 86_400
        times = [time.strftime("%y%m%d%H%M%SZ", time.gmtime(each)) for each in (begins, ends)]
        openssl(
            *("ca", "-batch", "-notext", "-config", str(config)),
            *("-in", str(self._folder / f"{name}.csr"), "-out", str(pair.certificate)),
            *("-cert", str(self.own.certificate), "-keyfile", str(self.own.key)),
            *("-startdate", times[0], "-enddate", times[1]),
            *("-extfile", str(self._folder / f"{name}.ext")),
        )
        return pair

    def server(self, pair: Pair, *, ask_clients: bool) -> ssl.SSLContext:
        """Return the TLS context of a server with this certificate."""
        context = ssl.create_default_context(
            ssl.Purpose.CLIENT_AUTH, cafile=str(self.own.certificate)
        )
        context.load_cert_chain(pair.certificate, pair.key)
        context.verify_mode = ssl.CERT_REQUIRED if ask_clients else ssl.CERT_NONE
        return context

    def client(self, pair: Pair | None = None) -> ssl.SSLContext:
        """Return the TLS context of a client that trusts this authority and presents ``pair``."""
        context = ssl.create_default_context(cafile=str(self.own.certificate))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context


def openssl(*arguments: str) -> None:
    """Run ``openssl``; skip the test if it is not installed."""
    binary = shutil.which("openssl")
    if binary is None:
        pytest.skip("the openssl command is not installed")
    subprocess.run((binary, *arguments), check=True, capture_output=True)
