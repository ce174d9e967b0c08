"""Cost of one access-log entry in the picker: ``python bench/cost/access_log.py``.

Parses messages like Envoy's (about 16 KiB, one entry of about 600 bytes per request) and applies
them to a router with the replicas, without a network. ``parse`` is parsing alone, ``all`` the whole
log service. Figures are the best of several rounds, because other load only adds time.
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from envoy.service.accesslog.v3 import als_pb2
from prometheus_client import CollectorRegistry

from ext_proc.feedback.fold import Feedback
from ext_proc.feedback.metrics import FeedbackMetrics
from ext_proc.feedback.service import LogService
from ext_proc.feedback.wire import entries_of
from ext_proc.routing.router import Router
from ext_proc.routing.values.pool import Endpoint, EndpointKey, Pool, Variant
from ext_proc.routing.values.settings import Outlier
from tidegate_api.names import (
    FIRST_BODY_TAG,
    SUMMARY_GOOD,
    SUMMARY_TAG,
    USAGE_NAMESPACE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

PLAIN = Outlier()


def _address(number: int) -> tuple[str, int]:
    return f"10.0.{number // 250}.{1 + number % 250}", 8000


def written(
    entries: int,
    replicas: int,
    rng: random.Random,
    *,
    usage: bool = False,
    summary: bool = True,
) -> bytes:
    """Return an access-log message with ``entries`` entries.

    Args:
        entries: Number of entries.
        replicas: Number of replicas that they name.
        rng: Draws the replicas.
        usage: The entries tell token counts.
        summary: They have a summary, as those of Envoy 1.37 and later.
    """
    message = als_pb2.StreamAccessLogsMessage()
    for number in range(entries):
        entry = message.http_logs.log_entry.add()
        common, chosen = entry.common_properties, rng.randrange(replicas)
        host, port = _address(chosen)
        common.start_time.FromSeconds(1_700_000_000)
        common.duration.FromMilliseconds(120)
        common.time_to_last_rx_byte.FromMilliseconds(1)
        common.time_to_first_upstream_tx_byte.FromMilliseconds(2)
        common.time_to_first_upstream_rx_byte.FromMilliseconds(50)
        common.time_to_last_upstream_rx_byte.FromMilliseconds(118)
        for place in (
            common.upstream_remote_address,
            common.upstream_local_address,
            common.downstream_remote_address,
            common.downstream_local_address,
        ):
            place.socket_address.address = host
            place.socket_address.port_value = port
        common.upstream_cluster = "llm/stable/http"
        common.route_name = "llm"
        common.stream_id = f"{number:032x}"
        common.upstream_request_attempt_count = 1
        common.custom_tags[FIRST_BODY_TAG] = "48123;120"
        spaces = common.metadata.filter_metadata
        spaces["tidegate"]["picker"] = "p"
        spaces["tidegate"]["ticket"] = f"x-{number}"
        spaces["tidegate"]["at"] = "127.0.0.1:18001"
        picks = ",".join("{}:{}".format(*_address((chosen + n) % replicas)) for n in range(3))
        spaces["envoy.lb"]["x-gateway-destination-endpoint"] = picks
        spaces["envoy.lb"]["x-gateway-destination-endpoint-served"] = f"{host}:{port}"
        if usage:
            spaces[USAGE_NAMESPACE].update(
                {"prompt": 900, "cached": 512, "output": 40, "model": "toy-llm"}
            )
        if summary:
            common.custom_tags[SUMMARY_TAG] = (
                f"{SUMMARY_GOOD}p;x-{number};llm/stable/http;{host}:{port};200;512;1700000000000;"
                f"120000;48123;50123;118000;;;{'900;512;40;toy-llm' if usage else ';;;'}"
            )
        entry.request.path = "/v2/models/toy-llm/generate"
        entry.request.request_id = f"{number:032x}"
        entry.response.response_code.value = 200
        entry.response.response_body_bytes = 512
        entry.response.response_code_details = "via_upstream"
    return bytes(message.SerializeToString())


def router_of(replicas: int, outlier: Outlier = PLAIN) -> Router:
    """Return a router with the replicas of ``written``."""
    endpoints = tuple(
        Endpoint(EndpointKey(f"r{n}", 1), "stable", "{}:{}".format(*_address(n)), None)
        for n in range(replicas)
    )
    pool = Pool(
        "llm",
        variants=(Variant("stable", 1),),
        endpoints=endpoints,
        outlier=outlier,
        models=frozenset({"toy-llm"}),
        usage=True,
    )
    router = Router(random.Random(1))  # noqa: S311 - a repeatable load
    router.set_pools({"llm": pool}, 0.0)
    return router


def service_of(router: Router, registry: CollectorRegistry) -> LogService:
    """Return the log service for the messages of ``written``."""
    feedback = Feedback(router, picker="p", life="x-")
    return LogService(feedback, FeedbackMetrics(registry, feedback, router.conditions))


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that waits only for its next turn, without an event loop."""
    with suppress(StopIteration):
        while True:
            work.send(None)


def _best_us(work: Callable[[], int], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        count = work()
        best = min(best, (time.process_time() - begin) / count)
    return best * 1e6


def main() -> None:
    """Print the CPU time per entry, microseconds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 100, 1000])
    parser.add_argument("--entries", type=int, default=24, help="entries per message")
    parser.add_argument("--messages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--usage", action="store_true", help="entries tell token counts")
    parser.add_argument("--latency-factor", type=float, default=0.0)
    args = parser.parse_args()
    rng = random.Random(1)  # noqa: S311 - a repeatable load
    for count in args.replicas:
        router = router_of(count, Outlier(latency_factor=args.latency_factor))
        logs = service_of(router, CollectorRegistry())
        data = [written(args.entries, count, rng, usage=args.usage) for _ in range(args.messages)]
        total = args.entries * args.messages

        def parse(data: list[bytes] = data) -> int:
            return sum(1 for one in data for _ in entries_of(one))

        def fold(data: list[bytes] = data, logs: LogService = logs, total: int = total) -> int:
            for one in data:
                _run(logs.take(one))
            return total

        parsing, both = _best_us(parse, args.rounds), _best_us(fold, args.rounds)
        size = len(data[0]) // args.entries
        print(
            f"{count:5} replicas, {size} B per entry: parse {parsing:5.2f} us, all {both:5.2f} us"
        )


if __name__ == "__main__":
    main()
