"""Log entries of proxies whose clusters have names of their own."""

from __future__ import annotations

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2

from ext_proc.feedback.wire import entries_of


def logged(build):
    message = als_pb2.StreamAccessLogsMessage()
    entry = message.http_logs.log_entry.add()
    entry.common_properties.upstream_cluster = "original_destination_cluster"
    build(entry)
    (made,) = entries_of(message.SerializeToString())
    return made


def test_the_pool_of_an_entry_is_in_its_metadata():
    """The cluster's name says nothing of it; without the key it counts as before."""

    def entry(message):
        spaces = message.common_properties.metadata.filter_metadata
        spaces["tidegate"].update({"picker": "p", "ticket": "x-1", "pool": "llm"})

    assert logged(entry).cluster == "llm"
    assert logged(lambda _: None).cluster == "original_destination_cluster"


def test_the_pool_of_an_attempt_is_in_its_header():
    """Entries of attempts carry no metadata; a slot is empty where there is none."""

    def attempt(message):
        message.common_properties.access_log_type = accesslog_pb2.UpstreamEnd
        message.request.request_headers["x-tidegate-ticket"] = "x-1;a%2Fb;1.2.3.4:5;;my%20pool"

    made = logged(attempt)
    assert (made.ticket, made.picker, made.cluster) == ("x-1", "a/b", "my pool")
