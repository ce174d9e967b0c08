"""Where Envoy gets a resource from, and how an extension is wrapped."""

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
    """Return the config source that means: over the ADS stream."""
    return ConfigSource(
        ads=AggregatedConfigSource(),
        resource_api_version=ApiVersion.V3,
        initial_fetch_timeout=fetch_timeout,
    )


def extension(name: str, config: betterproto2.Message) -> TypedExtensionConfig:
    """Wrap an extension's configuration."""
    return TypedExtensionConfig(name=name, typed_config=PackedAny.pack(config))
