"""Config source for ADS, and packing of extension configurations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envoy_data_plane.envoy.config.core.v3 import (
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    TypedExtensionConfig,
)
from envoy_data_plane.google.protobuf import Any as PackedAny

if TYPE_CHECKING:
    from datetime import timedelta

    import betterproto2


def ads_source(fetch_timeout: timedelta | None = None) -> ConfigSource:
    """Return the config source for resources over the ADS stream."""
    return ConfigSource(
        ads=AggregatedConfigSource(),
        resource_api_version=ApiVersion.V3,
        initial_fetch_timeout=fetch_timeout,
    )


def extension(name: str, config: betterproto2.Message) -> TypedExtensionConfig:
    """Return an extension's configuration, packed."""
    return TypedExtensionConfig(name=name, typed_config=PackedAny.pack(config))
