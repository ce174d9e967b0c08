"""A development authority, and a certificate for each role and for the control server.

The ``openssl`` command makes them: Python's ``ssl`` comes with OpenSSL but cannot sign, and a
package that can would be one more for every installation, for a verb that production never needs.

Rules:

1. An authority that is there is kept, and so are the certificates that others trust; those of
   machines are made anew by each run, and put in place by renaming.
2. Keys are readable by their owner only.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args

from ext_proc.settings import default_id
from tidegate_common.tls.roles import TRUST_DOMAIN, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTROL: Final = "control"
MACHINES: Final = (CONTROL, *get_args(Role))
"""The folders that are made; that of the control server has no role."""
CA: Final = "ca.crt"
CA_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
LOCAL: Final = ("localhost", "127.0.0.1", "::1")
MAX_HOSTS: Final = 64
MAX_IDS: Final = 64
PICKER_ID: Final = "picker-1"
"""Id of the picker of `tidegate up` and of the compose file."""
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,253}")
TIMEOUT_S: Final = 30.0
_NEW_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_PRIVATE: Final = 0o600


class CertificateError(Exception):
    """Certificates cannot be made; the message says why."""


def make(
    folder: Path,
    hosts: Sequence[str] = (),
    days: int = 30,
    *,
    pickers: Sequence[str] = (),
    replicas: Sequence[str] = (),
) -> list[Path]:
    """Make the authority, if there is none, and all certificates; return their files.

    Args:
        folder: Where: ``ca.crt`` and ``ca.key``, and ``tls.crt``, ``tls.key`` and a copy of
            ``ca.crt`` in a folder for each machine, which is all that a machine needs.
        hosts: Names and addresses of servers besides those of this machine, at most ``MAX_HOSTS``.
        days: How long the certificates are valid; the authority lasts ten times as long.
        pickers: Ids of pickers that may use the certificate of the role ``picker``; if none are
            given, ``PICKER_ID`` and that of a picker on this machine that is given none.
        replicas: Ids of replicas for which that of the role ``reporter`` may speak.

    Raises:
        CertificateError: There is no ``openssl``, it fails, or a file cannot be written.
    """
    if len(hosts) > MAX_HOSTS or any(not _is_plain(host) for host in hosts):
        raise CertificateError(f"hosts are at most {MAX_HOSTS} DNS names or IP addresses")
    pickers = pickers or (PICKER_ID, default_id())
    ids = (*pickers, *replicas)
    if len(ids) > MAX_IDS or not all(map(_ID.fullmatch, ids)):
        raise CertificateError(
            f"ids of pickers and replicas are at most {MAX_IDS}, of letters, digits, '.', '_', '-'"
        )
    speakers = {"picker": pickers, "reporter": replicas}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / CA).exists() or not (folder / CA_KEY).exists():
            _authority(folder, days * 10)
        return [
            folder / CA,
            *(
                path
                for name in MACHINES
                for path in _machine(folder, name, hosts, days, speakers.get(name, ()))
            ),
        ]
    except OSError as error:
        raise CertificateError(f"cannot write {error.filename}: {error.strerror}") from error


def _authority(folder: Path, days: int) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as made:
        key, certificate = Path(made, CA_KEY), Path(made, CA)
        _openssl(
            *("req", "-x509", *_NEW_KEY, "-keyout", str(key), "-out", str(certificate)),
            *("-subj", "/CN=Tidegate development", "-days", str(days)),
            *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        )
        _put(key, folder / CA_KEY)
        _put(certificate, folder / CA)


def _machine(
    folder: Path, name: str, hosts: Sequence[str], days: int, ids: Sequence[str]
) -> list[Path]:
    own = folder / name
    own.mkdir(exist_ok=True)
    uris = [f"{TRUST_DOMAIN}/{name}", *(f"{TRUST_DOMAIN}/{name}/{each}" for each in ids)]
    names = [*(f"URI:{uri}" for uri in uris), f"DNS:{name}.tidegate"]
    names += [f"{'IP' if _is_ip(host) else 'DNS'}:{host}" for host in (*LOCAL, *hosts)]
    with tempfile.TemporaryDirectory(dir=own) as made:
        key, request, certificate = (Path(made, each) for each in (KEY, "request", CERTIFICATE))
        extensions = Path(made, "extensions")
        extensions.write_text(
            f"subjectAltName={','.join(names)}\n"
            "basicConstraints=critical,CA:FALSE\n"
            "keyUsage=critical,digitalSignature\n"
            "extendedKeyUsage=serverAuth,clientAuth\n",
            "utf-8",
        )
        _openssl(
            *("req", "-new", *_NEW_KEY, "-keyout", str(key), "-out", str(request)),
            *("-subj", f"/CN={name}"),
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-out", str(certificate), "-days", str(days)),
            *("-CA", str(folder / CA), "-CAkey", str(folder / CA_KEY), "-CAcreateserial"),
            *("-CAserial", str(Path(made, "serial")), "-extfile", str(extensions)),
        )
        trusted = Path(made, CA)
        trusted.write_bytes((folder / CA).read_bytes())
        _put(trusted, own / CA)
        _put(key, own / KEY)
        _put(certificate, own / CERTIFICATE)
    return [own / CERTIFICATE, own / KEY, own / CA]


def _put(made: Path, place: Path) -> None:
    if made.suffix == ".key":
        made.chmod(_PRIVATE)
    made.replace(place)


def _openssl(*arguments: str) -> None:
    binary = shutil.which("openssl")
    if binary is None:
        raise CertificateError("the `openssl` command is not installed, and it makes them")
    try:
        done = subprocess.run(  # noqa: S603 - a binary of the PATH, no shell
            (binary, *arguments),
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise CertificateError(f"openssl did not finish within {TIMEOUT_S:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise CertificateError(f"openssl: {said[-1] if said else 'failed'}")


def _is_ip(host: str) -> bool:
    return ":" in host or host.replace(".", "").isdecimal()


def _is_plain(host: str) -> bool:
    return 0 < len(host) <= 253 and all(c.isascii() and (c.isalnum() or c in ".-:*") for c in host)  # noqa: PLR2004 - the longest DNS name
