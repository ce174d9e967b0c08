"""Request counters of the replicas."""

from __future__ import annotations

from tidegate.demo.counters import ReplicaCounters, read_counts, reuse

PAGE = """\
# HELP nv_inference_request_success Number of successful inference requests
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="vision",version="1"} 7
nv_inference_request_success{model="toy-llm",version="1"} 2
nv_inference_request_failure{model="vision",version="1"} 9
# TYPE toy_llm_requests_total counter
toy_llm_requests_total{model="toy-llm",version="1"} 3
toy_llm_prompt_tokens_total{model="toy-llm",version="1"} 100
toy_llm_reused_tokens_total{model="toy-llm",version="1"} 64
"""


def test_a_page_is_read() -> None:
    """Requests per model and version and the tokens come from the page."""
    found = read_counts(PAGE)
    assert found.served == {("vision", "1"): 7, ("toy-llm", "1"): 3}
    assert (found.prompt_tokens, found.reused_tokens) == (100, 64)


def test_the_toy_models_own_count_wins() -> None:
    """The toy model's counter overrides Triton's, which is late for decoupled models."""
    assert read_counts(PAGE).served["toy-llm", "1"] == 3


def test_a_difference_counts_what_came_between() -> None:
    """The difference of two readings counts requests between them, also of new models."""
    before = ReplicaCounters({("vision", "1"): 5}, 10, 4)
    after = ReplicaCounters({("vision", "1"): 7, ("toy-llm", "2"): 1}, 30, 20)
    assert after.since(before) == ReplicaCounters({("vision", "1"): 2, ("toy-llm", "2"): 1}, 20, 16)


def test_a_counter_that_fell_was_reset() -> None:
    """After a replica's restart its counters start again at 0."""
    assert ReplicaCounters({("vision", "1"): 3}).since(
        ReplicaCounters({("vision", "1"): 9})
    ).served == {("vision", "1"): 3}


def test_reuse_is_the_share_of_prompt_tokens() -> None:
    """The replicas' tokens are summed before the share is taken."""
    assert reuse([ReplicaCounters({}, 100, 10), ReplicaCounters({}, 300, 90)]) == 0.25
