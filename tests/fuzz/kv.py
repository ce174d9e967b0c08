"""KV events from a network: any numbers and any bytes stay within bounds and raise nothing."""

from __future__ import annotations

from ext_proc.routing.cache.index_events import Reporting
from ext_proc.routing.cache.prefix_index import PrefixIndex
from ext_proc.routing.values.pool import EndpointKey
from ext_proc.telemetry.kv_events.follower import Follower
from ext_proc.telemetry.kv_events.translate import Translator

KEY = EndpointKey("r1", 1)
MAX_BLOCKS = 1000


def one_batch(data: bytes) -> None:
    """Take ``data`` as batches: a byte of number, two of length, and a batch, again and again."""
    index = PrefixIndex(max_blocks=MAX_BLOCKS)
    index.reports.set_reporting(KEY, complete=False)
    translator = Translator(
        KEY, 0, model="m", models=frozenset({"m", "a"}), block_tokens=2, block=index.reports.block
    )
    follower = Follower(
        translator,
        index.apply,
        lambda complete: index.apply(Reporting(KEY, complete)),
        can_replay=True,
    )
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at + 1 : at + 3], "big")
        payload = data[at + 3 : at + 3 + length]
        if not follower.live(data[at], payload):
            follower.give_up(data[at])
            assert follower.live(data[at], payload)
        index.table.reclaim(2 * MAX_BLOCKS)  # what a purge leaves in memory
        assert index.held(KEY) == index.blocks <= MAX_BLOCKS
        at += 3 + length
    index.reports.set_reporting(KEY, complete=None)
    index.expire(0.0)
    assert index.blocks == 0
