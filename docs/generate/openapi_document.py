"""The admin API over HTTP as an OpenAPI document, from its protos."""

from __future__ import annotations

import json

from xds_server.admin.web.openapi import document


def text() -> str:
    """Return the document."""
    return json.dumps(document(), indent=1) + "\n"
