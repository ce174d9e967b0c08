"""Signed tokens (JWT) for tests: HS256, of the standard library."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import Any

SECRET = b"a secret of thirty-two bytes or more"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def key_set(secret: bytes = SECRET, kid: str = "one", **more: bytes) -> str:
    """Return the key, and those of ``more`` by their ids, as a JWKS."""
    keys = [
        {"kty": "oct", "alg": "HS256", "kid": name, "k": _encoded(each)}
        for name, each in {kid: secret, **more}.items()
    ]
    return json.dumps({"keys": keys})


def token(secret: bytes = SECRET, kid: str = "one", **claims: Any) -> str:
    """Return a token that expires in an hour, with these further claims; None leaves one out."""
    head = {"alg": "HS256", "kid": kid, "typ": "JWT"}
    body = {"iss": "tests", "aud": "vision", "exp": int(time.time()) + 3600, **claims}
    body = {name: value for name, value in body.items() if value is not None}
    parts = ".".join(_encoded(json.dumps(each).encode()) for each in (head, body))
    signature = hmac.new(secret, parts.encode(), hashlib.sha256).digest()
    return f"{parts}.{_encoded(signature)}"
