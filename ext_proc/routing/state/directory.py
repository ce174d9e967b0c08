"""Directory: finds the pool of a request whose route names none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ext_proc.routing.values.refusal import (
    TRITON_FORMS,
    Refusal,
    RefusalKind,
    unknown_in_triton,
)
from ext_proc.routing.values.request import Form

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ext_proc.routing.values.pool import Pool, Protocol
    from ext_proc.routing.values.request import Features


class Directory:
    """Finds the pool of a request by header, model, path or protocol; each lookup is O(1).

    If several pools serve a model, the path decides, else the first by name. On its paths a pool
    without models takes every model that no other pool has there; if it is the default pool for
    HTTP, it does so on paths that no pool lists too, and that for gRPC in calls.
    """

    def __init__(self, pools: Sequence[Pool]) -> None:
        self.names = frozenset(pool.name for pool in pools)
        self.paths: set[str] = set()
        """Paths whose body names the model."""
        self.by_model: dict[str, str] = {}
        self.by_path_and_model: dict[tuple[str, str], str] = {}
        self.any_model: dict[str, str] = {}
        """By path: the pool without models."""
        self.path_defaults: dict[str, str] = {}
        self.grpc_default: str | None = None
        self.http_default: str | None = None
        """Takes what comes on paths that no pool lists; only generic proxies send such requests."""
        self.any_elsewhere: str | None = None
        """The default pool for HTTP if it has no models."""
        self.any_call: str | None = None
        """That for gRPC."""
        for pool in sorted(pools, key=lambda each: each.name):
            self.paths |= pool.paths
            for model in sorted(pool.models):
                self.by_model.setdefault(model, pool.name)
                for path in pool.paths:
                    self.by_path_and_model.setdefault((path, model), pool.name)
            for path in () if pool.models else pool.paths:
                self.any_model.setdefault(path, pool.name)
            for path in pool.default_for_paths:
                self.path_defaults.setdefault(path, pool.name)
            if pool.default_for_grpc and self.grpc_default is None:
                self.grpc_default = pool.name
                self.any_call = None if pool.models else pool.name
            if pool.default_for_http and self.http_default is None:
                self.http_default = pool.name
                self.any_elsewhere = None if pool.models else pool.name

    def find(self, features: Features, path: str, protocol: Protocol) -> str | Refusal:
        """Return the pool of a request, in the order of ``EndpointRegistry.pool_for``."""
        if features.pool is not None:
            if features.pool in self.names:
                return features.pool
            return Refusal(RefusalKind.UNKNOWN_POOL, f"no pool is named {features.pool!r}")
        path = path.partition("?")[0]
        own_path = protocol == "http" and path in self.paths
        if features.model is not None:
            found = (
                self.by_path_and_model.get((path, features.model)) or self.any_model.get(path)
                if own_path
                else self.by_model.get(features.model) or self._any_model(protocol)
            )
            if found is not None:
                return found
        if features.model is not None and features.form is not Form.MODEL_CALL:
            return _unserved(features, features.model, path if own_path else "")
        default = self.path_defaults.get(path) if own_path else self.http_default
        if protocol == "grpc":
            default = self.grpc_default
        if default is not None:
            return default
        return Refusal(
            RefusalKind.UNKNOWN_MODEL,
            "the request names no model, and no pool is the default for its form;"
            " send the header tidegate-model",
        )

    def _any_model(self, protocol: Protocol) -> str | None:
        return self.any_elsewhere if protocol == "http" else self.any_call


def _unserved(features: Features, model: str, own_path: str) -> Refusal:
    """Return the refusal of a model that no pool serves; ``own_path``: on this path of pools."""
    if features.form in TRITON_FORMS and not own_path:
        return unknown_in_triton(model, features.version, served=False)
    on = f" on {own_path}" if own_path else ""
    return Refusal(RefusalKind.UNKNOWN_MODEL, f"no pool serves the model {model!r}{on}")
