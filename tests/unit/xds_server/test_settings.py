"""Start options of the control server that exclude or need one another."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from xds_server.settings import ControlSettings

STORE = "etcd://10.0.0.1:2379"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"store": STORE, "store_cert": Path("/c")}, "belong together; give both"),
        ({"store": STORE, "store_cert": Path("/c"), "store_key": Path("/k")}, "needs --store-ca"),
        ({"store_ca": Path("/a")}, "--store-ca needs --store"),
        ({"store": "etcdd://a"}, "is no store; write the addresses of etcd's members"),
    ],
)
def test_options_of_the_store_that_contradict_each_other(given: dict, text: str) -> None:
    """The error names them and what to give."""
    with pytest.raises(ValidationError, match=text):
        ControlSettings(fleet=Path("/f"), **given)
