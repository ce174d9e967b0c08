"""Config source for ADS, packing of extension configurations, and quicker writing of messages.

Rule: a message is checked as it is written, by the validator of its type, of which there is one;
the annotations of a type are read once, and a field's default is made without a filter of warnings
of its own. betterproto2 makes a validator for each message that it writes, and reads annotations
and filters warnings for each field, which is more than half of the time that all resources of a
fleet take.
"""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import Any, Final

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import (
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    ExtensionConfigSource,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any as PackedAny
from pydantic_core import SchemaValidator

_validators: Final[dict[type[betterproto2.Message], SchemaValidator]] = {}
"""Type -> its validator, of the types that were written: a few hundred at most."""


def _validate(message: betterproto2.Message) -> None:
    """Check the fields of a message as ``betterproto2.Message._validate`` does.

    Raises:
        ValidationError: A field has a value of another type, or two of one choice are set.
    """
    kind = type(message)
    validator = _validators.get(kind)
    if validator is None:
        schema = kind.__pydantic_core_schema__  # type: ignore[attr-defined]  # of pydantic
        validator = _validators[kind] = SchemaValidator(schema)
    fields = vars(message).copy()
    del fields["_unknown_fields"]
    validator.validate_python(fields)


def _default(message: Any, field: str) -> object:
    """Return a field's default, as ``betterproto2.Message._get_field_default`` does.

    That one lets no default warn that it is deprecated; none does: messages have ``None``.
    """
    return message._betterproto.default_gen[field]()  # noqa: SLF001 - see the rule


_message: Final[Any] = betterproto2.Message
_once: Final[Any] = cache
_message._type_hints = classmethod(_once(_message._type_hints.__func__))  # noqa: SLF001 - see the rule
_message._validate = _validate  # noqa: SLF001 - see the rule
_message._get_field_default = _default  # noqa: SLF001 - see the rule


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


def discovered(name: str, settings: betterproto2.Message) -> HttpFilter:
    """Return an HTTP filter whose settings Envoy asks for by its name (ECDS).

    Args:
        name: Name of the filter.
        settings: A message of the settings' type; its content does not matter.
    """
    return discovered_type(name, PackedAny.pack(settings).type_url)


def discovered_type(name: str, type_url: str) -> HttpFilter:
    """Return an HTTP filter whose settings have this type."""
    return HttpFilter(
        name=name,
        config_discovery=ExtensionConfigSource(
            # No limit: no request passes a filter without its settings.
            config_source=ads_source(fetch_timeout=timedelta(0)),
            type_urls=[type_url],
        ),
    )
