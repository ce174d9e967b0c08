"""Filters that a route enables and that some requests of it skip.

A filter is disabled in the listener, as a rule: a request whose route does not enable it does not
create it.
Source: ``envoy/extensions/common/matching/v3/extension_matcher.proto``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.common.matching.v3 import extension_matcher_pb2
from envoy.extensions.filters.common.matcher.action.v3 import skip_action_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import (
    http_connection_manager_pb2,
)
from envoy.type.matcher.v3 import http_inputs_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable


class Skip(NamedTuple):
    """Requests that skip a filter."""

    header: str
    pattern: str = ".+"
    """Regular expression of the header's whole value; a missing header does not match."""
    unless: bool = False
    """Whether those skip it that do *not* match."""


def wrapped(name: str, config: Any, skips: tuple[Skip, ...], *, disabled: bool = True) -> bytes:
    """Return the serialized ``HttpFilter``.

    Args:
        name: Name of the filter in the listener.
        config: Message of the filter itself.
        skips: Who skips it, where the route that enables it does not say otherwise.
        disabled: Only routes enable it.
    """
    wrapper = extension_matcher_pb2.ExtensionWithMatcher(xds_matcher=_matcher(skips))
    wrapper.extension_config.name = name
    wrapper.extension_config.typed_config.Pack(config, deterministic=True)
    message = http_connection_manager_pb2.HttpFilter(name=name, disabled=disabled)
    message.typed_config.Pack(wrapper, deterministic=True)
    return message.SerializeToString(deterministic=True)  # type: ignore[no-any-return]  # untyped library


def enable(route: Any, names: Iterable[str], skips: tuple[Skip, ...]) -> None:
    """Enable filters for requests that arrive on a route, whatever route they take in the end."""
    own = extension_matcher_pb2.ExtensionWithMatcherPerRoute(xds_matcher=_matcher(skips))
    enabled = route_components_pb2.FilterConfig()
    enabled.config.Pack(own, deterministic=True)
    for name in names:
        route.typed_per_filter_config[name].Pack(enabled, deterministic=True)


def _matcher(skips: tuple[Skip, ...]) -> Any:
    made = extension_matcher_pb2.ExtensionWithMatcher().xds_matcher
    for skip in skips:
        one = made.matcher_list.matchers.add()
        predicate = one.predicate.not_matcher if skip.unless else one.predicate
        single = predicate.single_predicate
        single.input.name = skip.header
        single.input.typed_config.Pack(
            http_inputs_pb2.HttpRequestHeaderMatchInput(header_name=skip.header)
        )
        single.value_match.safe_regex.regex = skip.pattern
        single.value_match.safe_regex.google_re2.SetInParent()
        one.on_match.action.name = "skip"
        one.on_match.action.typed_config.Pack(skip_action_pb2.SkipFilter())
    return made
