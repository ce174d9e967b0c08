"""Series that the fleet file declares."""

from __future__ import annotations

from ext_proc.routing.values.settings import CustomMetric
from ext_proc.telemetry.dialects import Vocabulary, read_all


def read(page, *declared):
    return read_all(page, 1.0, Vocabulary(declared)).readings


def test_counts_shares_and_sizes():
    """Counts add up, shares are averaged after scaling, sizes must agree."""
    page = (
        'q{lane="a"} 2\nq{lane="b"} 3\nfull{x="1"} 20\nfull{x="2"} 60\n'
        'size{x="1"} 16\nsize{x="2"} 16\n'
    )
    (reading,) = read(
        page,
        CustomMetric("queued", "q"),
        CustomMetric("kv_used", "full", scale=0.01),
        CustomMetric("kv_block_tokens", "size"),
    )
    assert (reading.model, reading.queued, reading.kv_used) == (None, 5, 0.4)
    assert reading.kv_block_tokens == 16
    (reading,) = read(
        'size{x="1"} 16\nsize{x="2"} 32\nq 1\n', CustomMetric("kv_block_tokens", "size")
    )
    assert reading.kv_block_tokens is None


def test_labels_are_a_subset():
    """A series counts where its labels include the declared ones."""
    page = 'q{lane="a",z="1"} 2\nq{lane="b",z="1"} 3\n'
    (reading,) = read(page, CustomMetric("queued", "q", (("lane", "a"),)))
    assert reading.queued == 2


def test_declared_wins_and_models_stay_apart():
    """A declared series replaces what a dialect found, for the model that the series names."""
    page = (
        'nv_inference_pending_request_count{model="m",version="1"} 1\n'
        'nv_inference_pending_request_count{model="n",version="1"} 2\n'
        'q{model="m",version="1"} 9\nq{model_name="o"} 4\n'
    )
    found = read(page, CustomMetric("queued", "q"))
    assert [(r.model, r.version, r.queued) for r in found] == [
        ("m", "1", 9),
        ("n", "1", 2),
        ("o", None, 4),
    ]


def test_a_plain_series():
    """A series without labels is read."""
    assert read("q 7\n", CustomMetric("queued", "q"))[0].queued == 7
