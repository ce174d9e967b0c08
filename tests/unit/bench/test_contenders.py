"""The contenders and their equal conditions."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import orjson
import pytest

from bench.emulator.fleet import ReplicaAddresses
from bench.peers import contenders, envoys
from bench.peers.environment import Environment
from bench.run import LIMITS, BenchOptions, UsageError, limit_s, usual_s
from bench.simulate.workload import Job, Workload
from bench.suites import fleet_plan, workloads
from bench.suites.context import Context
from bench.suites.overhead import poisson

PLACES = [ReplicaAddresses(f"e{n}", f"127.0.0.1:{n}", "", "") for n in (1, 2)]


def context(**changes: object) -> Context:
    """Return a context of the short form."""
    wanted = {"full": False, "environment": Environment(Path()), "say": print, **changes}
    return Context(**wanted)  # type: ignore[arg-type]  # a test's shorthand


@pytest.mark.parametrize("policy", sorted(envoys.POLICIES))
def test_an_envoy_has_every_replica_and_its_policy(policy: str) -> None:
    """All addresses are endpoints; ring-hash uses the session header."""
    made = envoys.bootstrap(policy, "127.0.0.1:80", "127.0.0.1:81", PLACES)
    cluster = made["static_resources"]["clusters"][0]
    ends = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    ports = [end["endpoint"]["address"]["socket_address"]["port_value"] for end in ends]
    assert ports == [1, 2]
    assert cluster["lb_policy"].lower().replace("_", "-") == policy
    assert ("hash_policy" in str(made)) == (policy == "ring-hash")


def test_a_peer_gets_what_its_readme_gives_it() -> None:
    """A peer gets policy, replicas, ports and a log level, and otherwise its defaults."""
    made = {
        name: contenders.router_command(name, "python", "127.0.0.1:9", "127.0.0.1:8", PLACES)
        for name in (*contenders.VLLM, *contenders.SGLANG)
    }
    assert " ".join(made["vllm-power_of_two"]) == (
        "python -m vllm_router.launch_router --host 127.0.0.1 --port 9 --policy power_of_two"
        " --worker-urls http://127.0.0.1:1 http://127.0.0.1:2"
        " --prometheus-port 8 --log-level warning"
    )
    assert made["sglang-cache_aware"][-2:] == ("--log-level", "warn")
    assert "cache_aware" in made["sglang-cache_aware"]


def test_where_replicas_fail_peers_check_health_like_envoy() -> None:
    """Interval, timeout and thresholds are those of the Envoys' clusters."""
    command = contenders.router_command(
        "vllm-cache_aware", "python", "127.0.0.1:9", "127.0.0.1:8", PLACES, checks=True
    )
    options = dict(zip(command[-8::2], command[-7::2], strict=True))
    made = envoys.bootstrap("round-robin", "127.0.0.1:80", "127.0.0.1:81", PLACES)
    (check,) = made["static_resources"]["clusters"][0]["health_checks"]
    assert check["interval"] == f"{options['--health-check-interval-secs']}s"
    assert check["timeout"] == f"{options['--health-check-timeout-secs']}s"
    assert str(check["unhealthy_threshold"]) == options["--health-failure-threshold"]
    assert str(check["healthy_threshold"]) == options["--health-success-threshold"]


def test_the_compiled_picker_takes_part_where_it_is_of_this_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The compiled picker takes part only if it was built from the current source."""
    monkeypatch.setattr(contenders, "BUILD", tmp_path)
    wanted = (contenders.TIDEGATE, contenders.COMPILED)
    assert contenders.present(wanted, Environment(Path())) == (contenders.TIDEGATE,)
    monkeypatch.setattr(contenders, "is_current", lambda *_: True)
    assert contenders.present(wanted, Environment(Path())) == wanted


def test_the_long_form_has_every_contender_on_every_workload_and_load() -> None:
    """Main contenders have three seeds, others one; the order rotates with the seed."""
    made = fleet_plan.cells(context(full=True, seeds=3), contenders.NAMES)
    assert len({cell.key for cell in made}) == len(made)
    plain = [cell for cell in made if not cell.fault and cell.api == "chat"]
    runs = Counter((cell.contender, cell.workload, cell.load) for cell in plain)
    for name in contenders.NAMES:
        wanted = 3 if name in fleet_plan.MAIN else 1
        for kind in workloads.KINDS:
            assert [runs[name, kind, load] for load in (0.65, 0.9)] == [wanted, wanted]
    first = [cell for cell in plain if (cell.workload, cell.load) == ("conversation", 0.65)]
    heads = [next(cell.contender for cell in first if cell.seed == seed) for seed in range(3)]
    assert len(set(heads)) == 3


def test_who_is_named_has_all_seeds() -> None:
    """Contenders named by the user have all seeds."""
    named = context(full=True, seeds=3, contenders=("vllm-round_robin",))
    plain = [cell for cell in fleet_plan.cells(named, named.contenders) if not cell.fault]
    assert len(plain) == len(workloads.KINDS) * 2 * 3


def test_the_forms_are_bounded() -> None:
    """The short form takes at most 15 minutes, the long form of ``fleet`` at most 80."""
    short = context()
    assert sum(usual_s(name, short) for name in LIMITS) < 15 * 60
    assert usual_s("fleet", context(full=True, seeds=3)) < 80 * 60
    for form in (short, context(full=True, seeds=3), context(seeds=50)):
        assert all(usual_s(name, form) < limit_s(name, form) for name in LIMITS)


def test_tidegate_also_meets_engines_that_send_headers_at_once() -> None:
    """The row has the requests of chats and a name of its own."""
    made = fleet_plan.cells(context(seeds=2), ("tidegate", "vllm-cache_aware"))
    rows = [cell for cell in made if cell.api == "early-headers"]
    assert [cell.key for cell in rows] == [
        (*fleet_plan.NATIVE, seed, "tidegate-early-headers", "") for seed in (0, 1)
    ]
    job = Job(3, 0.0, 600, 77, (1,), "s9")
    assert workloads.requests([job], "salt", "early-headers") == workloads.requests([job], "salt")


def test_triton_s_words_carry_the_same_prompts() -> None:
    """The generate request of a job has the text of its chat."""
    job = Job(3, 0.0, 600, 77, (1,), "s9")
    texts = [workloads.requests([job], "salt", api)[0] for api in ("chat", "generate")]
    prompts = [orjson.loads(text.partition(b"\r\n\r\n")[2]) for text in texts]
    assert prompts[0]["messages"][0]["content"] == prompts[1]["text_input"]
    assert texts[1].startswith(b"POST /v2/models/toy-llm/generate_stream ")


def test_an_unknown_contender_is_refused() -> None:
    """The error lists the known contenders."""
    with pytest.raises(ValueError, match=r"there are tidegate, .*vllm-cache_aware"):
        contenders.start("nginx", PLACES, Environment(Path()), {})


def test_unknown_names_are_usage_errors() -> None:
    """Suites and contenders are checked before anything runs."""
    with pytest.raises(UsageError, match="no suite 'all'; there are throughput"):
        BenchOptions(suites=("all",))
    with pytest.raises(UsageError, match=r"no suite 'throughputs'; did you mean throughput\?"):
        BenchOptions(suites=("throughputs",))
    with pytest.raises(UsageError, match="no contender 'nginx'"):
        BenchOptions(contenders=("nginx",))
    assert sum(quick for quick, _ in LIMITS.values()) < 30 * 60


def test_a_page_without_markers_is_refused_at_once(tmp_path: Path) -> None:
    """A page without markers is rejected before the measurement."""
    page = tmp_path / "page.md"
    with pytest.raises(UsageError, match="No such file"):
        BenchOptions(docs=page)
    page.write_text("text")
    with pytest.raises(UsageError, match="has no lines"):
        BenchOptions(docs=page)


def test_arrivals_have_the_wanted_rate() -> None:
    """The rate does not depend on the slice: 2 per emulated second at half load, scale 4."""
    jobs = [Job(n, n * 0.01, 10, 5, ()) for n in range(1_000)]
    kind = workloads.Kind("x", 4.0, cache_rich=False)
    prepared = workloads.Prepared("x", kind, Workload("x", jobs), saturation=4.0, slo_s=1.0)
    at = workloads.times(prepared, 0.5, 10.0, seed=1)
    assert len(at) == 80
    assert at[-1] == pytest.approx(10.0, rel=0.05)


def test_requests_are_the_same_for_all_and_leak_nothing() -> None:
    """A request contains model, text and session, but neither blocks nor the answer's length."""
    (request,) = workloads.requests([Job(3, 0.0, 600, 77, (1,), "s9")], "salt")
    head, _, body = request.partition(b"\r\n\r\n")
    assert b"x-session-id: s9" in head
    assert f"content-length: {len(body)}".encode() in head
    assert b"max_tokens" not in body
    assert body.startswith(b'{"model":"toy-llm","messages":[{"role":"user","content":"')


def test_poisson_repeats() -> None:
    """Arrivals are equal for a seed, and their number matches the rate."""
    assert poisson(100.0, 10.0, 1) == poisson(100.0, 10.0, 1)
    assert len(poisson(100.0, 10.0, 1)) == pytest.approx(1_000, rel=0.1)
