"""The table of paths that clients may call, from the module that makes Envoy's routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pages import code, table

from xds_server.resources.routes import paths

if TYPE_CHECKING:
    from collections.abc import Iterable

_MODEL = "/v2/models/M[/versions/V]"
_TITLES = ("paths", "methods", "answered by")


def tables() -> dict[str, str]:
    """Return the tables of allowed and of refused paths."""
    calls = ["ModelStreamInfer", *paths.UNARY_CALLS]
    pool = "a replica of the model's pool"
    anyone = "any healthy replica, without a picker"
    rows = [
        (_all(f"{_MODEL}/{verb}" for verb in paths.INFERENCE), _all(paths.POST), pool),
        (_all([_MODEL, *(f"{_MODEL}/{verb}" for verb in paths.READS)]), _all(paths.READ), pool),
        (_all(paths.GRPC_SERVICE + call for call in calls), _all(paths.POST), pool),
        ("each pool's `match.paths`", _all(paths.ANY), "a replica of the pool that the body names"),
        (
            "`…/v1/models`, `…/v1/models/NAME`, where OpenAI's paths are in `match.paths`",
            _all(paths.READ),
            anyone,
        ),
        (_all(paths.SERVER_PATHS), _all(paths.READ), anyone),
        (_all((*paths.SERVER_CALLS, *paths.SERVER_STREAMS)), _all(paths.POST), anyone),
        (code("/v2/health/live"), _all(paths.READ), "Envoy"),
    ]
    refused = [code(f"{prefix}…") for prefix in paths.ONE_REPLICA_HTTP]
    refused.append(code(f"{_MODEL}/trace…"))
    refused += [code(f"{paths.GRPC_SERVICE}{method}…") for method in paths.ONE_REPLICA_GRPC]
    rows.append((", ".join(refused), "all", "Envoy, with 403"))
    rows.append(("everything else", "all", "Envoy, with 404"))
    return {"allowed": table(_TITLES, rows)}


def _all(names: Iterable[str]) -> str:
    return ", ".join(map(code, names))
