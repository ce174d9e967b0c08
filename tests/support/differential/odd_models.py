"""Inferences and questions about models and versions that no replica has, oddly named."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from support.differential.answers import Call
from support.differential.grpc_calls import INFER, asked, image
from support.differential.raw_calls import IMAGE, JSON, sent

NAMES: Final = ('a"b', "a'b", "a b", "été", "a.b", "missing" * 30, "%41")
VERSIONS: Final = (
    "0", "007", "9", "-0", "-1", "-9223372036854775808", "-9223372036854775809", "x", " ", "2.5x",
    "0x1", "9223372036854775807", "9223372036854775808", "9" * 30, "ü",
)  # fmt: skip

ODD_NAMES: Final = tuple(
    Call(f"odd model: {verb} of {name[:12]}", sent(f"/v2/models/{quote(name)}/{verb}", IMAGE, JSON))
    for name in NAMES
    for verb in ("infer", "versions/3/infer", "generate")
)
"""Over HTTP, where the names stand in paths."""
ODD_MESSAGES: Final = (
    *(Call(f"odd model: gRPC infer of {name[:12]}", asked(INFER, image(name))) for name in NAMES),
    *(
        Call(
            f"odd model: gRPC infer of {model} {version[:20]!r}",
            asked(INFER, image(model, model_version=version)),
        )
        for model in ("vision", "missing")
        for version in VERSIONS
    ),
)
