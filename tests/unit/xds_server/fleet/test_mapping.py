"""Messages of models by tables."""

from __future__ import annotations

import pytest

from tidegate_api.fleet.v1 import pool_pb2
from xds_server.fleet.mapping import MessageCopier
from xds_server.fleet.model.resilience import SlowStartSpec
from xds_server.fleet.model.routing import ModelNeedsSpec, Routing


def test_names_may_differ_by_a_unit() -> None:
    """Percentages become shares, MiB become bytes, and durations seconds."""
    ramp = MessageCopier(pool_pb2.SlowStart, SlowStartSpec)
    assert ramp(SlowStartSpec(window=9, min_weight_percent=25)) == pool_pb2.SlowStart(
        window_seconds=9, aggression=1, min_weight=0.25
    )
    needs = MessageCopier(pool_pb2.ModelNeeds, ModelNeedsSpec)
    assert needs(ModelNeedsSpec(model="m", memory_mib=3)).memory_bytes == 3 * 2**20


def test_words_parts_and_computed_fields() -> None:
    """Words become enums, nested models messages; the caller gives what is computed."""
    routing = MessageCopier(pool_pb2.Routing, Routing, computed={"allow_override", "move_bytes"})
    given = Routing(body="full", co_batch_hold_ms=0.5)
    made = routing(given, allow_override=["random"], move_bytes=8)
    assert (made.body, made.co_batch_hold_seconds) == (pool_pb2.BODY_MODE_FULL, 0.0005)
    assert made.gpu_weights.queue == 0.4
    assert (made.tokenizer, made.allow_override, made.move_bytes) == ("", ["random"], 8)


def test_a_field_that_the_model_has_not_is_refused_at_once() -> None:
    """A field that was added to the schema alone is found when the module is imported."""
    with pytest.raises(TypeError, match=r"Outlier.consecutive_failures: .*SlowStartSpec has no"):
        MessageCopier(pool_pb2.Outlier, SlowStartSpec)
