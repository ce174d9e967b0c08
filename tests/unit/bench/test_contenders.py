"""Who is compared, and that all of them meet the same."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from bench.emulator.fleet import Place
from bench.peers import contenders, envoys
from bench.peers.environment import Environment
from bench.run import LIMITS, Options, UsageError
from bench.suites import fleet, workloads
from bench.suites.context import Context
from bench.suites.overhead import poisson
from tidegate.simulate.workload import Job, Workload

PLACES = [Place(f"e{n}", f"127.0.0.1:{n}", "", "") for n in (1, 2)]


def context(**changes: object) -> Context:
    """Return a context of the short form."""
    wanted = {"full": False, "environment": Environment(Path()), "say": print, **changes}
    return Context(**wanted)  # type: ignore[arg-type]  # a test's shorthand


@pytest.mark.parametrize("policy", sorted(envoys.POLICIES))
def test_an_envoy_has_every_replica_and_its_policy(policy: str) -> None:
    """All addresses are endpoints; ring hash goes by the session."""
    made = envoys.bootstrap(policy, "127.0.0.1:80", "127.0.0.1:81", PLACES)
    cluster = made["static_resources"]["clusters"][0]
    ends = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ports = [end["endpoint"]["address"]["socket_address"]["port_value"] for end in ends]
    assert ports == [1, 2]
    assert cluster["lb_policy"].lower().replace("_", "-") == policy
    assert ("hash_policy" in str(made)) == (policy == "ring-hash")


def test_a_missing_peer_is_left_out() -> None:
    """The contenders of a package that could not be installed do not take part."""
    missing = Environment(Path(), missing={"vllm-router": "no wheel"})
    names = fleet.available(context(environment=missing))
    assert not set(names) & set(contenders.VLLM)
    assert contenders.TIDEGATE in names


def test_every_contender_meets_every_workload_load_and_seed() -> None:
    """The grid is whole and the order of contenders turns with the seed."""
    made = fleet.cells(context(full=True, seeds=3), contenders.NAMES)
    plain = [cell for cell in made if not cell.fault and cell.api == "chat"]
    cells = len(workloads.KINDS) * 2 * 3 * len(contenders.NAMES)
    assert len(plain) == len(set(plain)) == cells
    first = [cell.contender for cell in plain[:: len(contenders.NAMES)]][:3]
    assert first == list(contenders.NAMES[:3])


def test_triton_s_words_carry_the_same_prompts() -> None:
    """The generate request of a job has the text of its chat."""
    job = Job(3, 0.0, 600, 77, (1,), "s9")
    texts = [workloads.requests([job], "salt", api)[0] for api in ("chat", "generate")]
    prompts = [orjson.loads(text.partition(b"\r\n\r\n")[2]) for text in texts]
    assert prompts[0]["messages"][0]["content"] == prompts[1]["text_input"]
    assert texts[1].startswith(b"POST /v2/models/toy-llm/generate_stream ")


def test_an_unknown_contender_is_refused() -> None:
    """The refusal names those that there are."""
    with pytest.raises(ValueError, match=r"there are tidegate, .*vllm-cache_aware"):
        contenders.start("nginx", PLACES, Environment(Path()), {})


def test_unknown_names_are_usage_errors() -> None:
    """Suites and contenders are checked before anything runs."""
    with pytest.raises(UsageError, match="no suite 'all'; there are throughput"):
        Options(suites=("all",))
    with pytest.raises(UsageError, match="no contender 'nginx'"):
        Options(contenders=("nginx",))
    assert sum(quick for quick, _ in LIMITS.values()) < 20 * 60


def test_a_page_without_markers_is_refused_at_once(tmp_path: Path) -> None:
    """Nobody measures for hours to hear that the results have no place."""
    page = tmp_path / "page.md"
    with pytest.raises(UsageError, match="No such file"):
        Options(docs=page)
    page.write_text("text")
    with pytest.raises(UsageError, match="has no lines"):
        Options(docs=page)


def test_arrivals_have_the_wanted_rate() -> None:
    """A slice's own pace does not matter: 2 per emulated second at half load, 4 times faster."""
    jobs = [Job(n, n * 0.01, 10, 5, ()) for n in range(1_000)]
    kind = workloads.Kind("x", 4.0, cache_rich=False)
    prepared = workloads.Prepared("x", kind, Workload("x", jobs), saturation=4.0, slo_s=1.0)
    at = workloads.times(prepared, 0.5, 10.0, seed=1)
    assert len(at) == 80
    assert at[-1] == pytest.approx(10.0, rel=0.05)


def test_requests_are_the_same_for_all_and_leak_nothing() -> None:
    """A request has model, text, session and nothing that tells of blocks or of the answer."""
    (request,) = workloads.requests([Job(3, 0.0, 600, 77, (1,), "s9")], "salt")
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"x-session-id: s9" in head
    assert f"content-length: {len(body)}".encode() in head
    assert b"max_tokens" not in body
    assert body.startswith(b'{"model":"toy-llm","messages":[{"role":"user","content":"')


def test_poisson_repeats() -> None:
    """Both routes of a comparison meet the same arrivals, about as many as the rate says."""
    assert poisson(100.0, 10.0, 1) == poisson(100.0, 10.0, 1)
    assert len(poisson(100.0, 10.0, 1)) == pytest.approx(1_000, rel=0.1)
