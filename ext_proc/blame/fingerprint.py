"""Fingerprints: keyed digests that tell whether two requests ask a replica for the same work.

A fingerprint covers pool, model and the whole body as it was sent, compressed or not; a client that
changes one byte has another one. It exists only for bodies that were read to their end.

It is HMAC-SHA-256, cut to ``BYTES``. A fast hash such as XXH3 takes a tenth of the time, but two
bodies with the same value can be constructed for it even where the seed is secret: a client could
have another client's request refused. BLAKE2b in CPython takes twice the time, as OpenSSL uses
the processor's SHA instructions. Bodies are only hashed after a replica has died, so the difference
does not matter to other requests (``bench/cost/parse.py``).

Source: RFC 2104, FIPS 180-4.
"""

from __future__ import annotations

import hmac
from typing import Final

BYTES: Final = 16
"""Size of a fingerprint: 2**64 bodies until two have the same one by chance."""


class Fingerprints:
    """Makes fingerprints.

    Args:
        seed: The fleet's seed, below ``2 ** 64``: pickers and workers with the same seed make the
            same fingerprints.
    """

    __slots__ = ("_mac",)

    def __init__(self, seed: int) -> None:
        self._mac = hmac.new(seed.to_bytes(8, "big"), digestmod="sha256")

    def of(self, pool: str, model: str, body: bytes) -> bytes:
        """Return the fingerprint of a request, ``BYTES`` long.

        Args:
            pool: The pool's name.
            model: The model's name; empty = none is named.
            body: The whole body, as sent.
        """
        mac = self._mac.copy()
        name, model_name = pool.encode(), model.encode(errors="surrogatepass")
        mac.update(len(name).to_bytes(4, "big") + len(model_name).to_bytes(4, "big"))
        mac.update(name + model_name)
        mac.update(body)
        return mac.digest()[:BYTES]

    def caller(self, pool: str, client: str) -> bytes:
        """Return the digest of a caller, ``BYTES`` long: who it is need not be kept.

        Args:
            pool: The pool's name.
            client: The caller's name or address.
        """
        return self.of(pool, "caller", client.encode(errors="surrogatepass"))


def shown(fingerprint: bytes) -> str:
    """Return the first half of a fingerprint in hexadecimal digits, for logs and pages."""
    return fingerprint[: BYTES // 2].hex()
