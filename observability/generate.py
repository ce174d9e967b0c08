"""Write the Grafana dashboards: `python observability/generate.py [--check]`.

The panels are those of `PANELS`, two a row; a dashboard's JSON follows from them. With `--check`
nothing is written: the exit code is 1, and the stale files are named.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent / "dashboards"
WIDTH, HEIGHT, ROW = 12, 8, 24
RATE = "$__rate_interval"


class Panel(NamedTuple):
    """One graph."""

    title: str
    unit: str
    """Grafana's name of the unit."""
    lines: tuple[tuple[str, str], ...]
    """Each an expression and its legend."""
    about: str = ""


def _line(title: str, unit: str, expression: str, legend: str = "", about: str = "") -> Panel:
    return Panel(title, unit, ((expression, legend),), about)


def _quantiles(title: str, buckets: str, by: str, shares: tuple[float, ...] = (0.5, 0.99)) -> Panel:
    """Return a panel of quantiles of a histogram, by labels."""
    legend = " ".join(f"{{{{{each}}}}}" for each in by.split(", "))
    lines = tuple(
        (
            f"histogram_quantile({share}, sum by ({by}, le) (rate({buckets}[{RATE}])))",
            f"{legend} p{round(share * 100)}",
        )
        for share in shares
    )
    return Panel(title, "s", lines)


_P = "tidegate_picker"
_X = "tidegate_xds"
_POOL = '{pool=~"$pool"}'
_FAILED = 'outcome=~"error|broken|unreached|timeout|local"'

PANELS: dict[str, tuple[Panel, ...]] = {
    "Fleet": (
        _line("Status", "none", f"max({_X}_verdict)", "0 OK, 1 DEGRADED, 2 OUTAGE"),
        _line("Reasons", "short", f"max by (kind) ({_X}_reasons)", "{{kind}}"),
        _line("Requests", "reqps", "pool:tidegate_requests:rate5m", "{{pool}}"),
        _line("Failed share", "percentunit", "pool:tidegate_error_ratio:rate5m", "{{pool}}"),
        _line(
            "Unusable share of replicas", "percentunit", "pool:tidegate_unusable:ratio", "{{pool}}"
        ),
        _line(
            "Predicted hit ratio",
            "percentunit",
            "tidegate:hit_ratio:rate10m",
            "fleet",
            "Share of prompt tokens that replicas are predicted to have cached.",
        ),
        _line(
            "Requests without a pick",
            "reqps",
            f"sum by (reason) (rate({_P}_passes_total[{RATE}]))",
            "{{reason}}",
            "Empty where there were none.",
        ),
        _line("Revision in force", "none", f"max({_X}_revision)", "revision"),
    ),
    "Pool": (
        _line(
            "Requests by variant",
            "reqps",
            f"sum by (pool, variant) (rate({_P}_requests_total{_POOL}[{RATE}]))",
            "{{pool}} {{variant}}",
        ),
        _line(
            "Requests that ended otherwise than well",
            "reqps",
            f'sum by (pool, variant, outcome) (rate({_P}_requests_total{{pool=~"$pool",'
            f'outcome!="good"}}[{RATE}]))',
            "{{pool}} {{variant}} {{outcome}}",
            "Empty where there were none.",
        ),
        _line(
            "Failed requests",
            "reqps",
            f"sum by (pool) (rate({_P}_requests_total"
            f'{{pool=~"$pool",{_FAILED}}}[{RATE}])) or 0 * pool:tidegate_requests:rate5m{_POOL}',
            "{{pool}}",
        ),
        _quantiles(
            "Time to the first byte",
            f"{_P}_request_first_byte_seconds_bucket{_POOL}",
            "pool, variant",
        ),
        _quantiles("Duration", f"{_P}_request_seconds_bucket{_POOL}", "pool, variant"),
        Panel(
            "Replicas",
            "short",
            (
                (f"max by (pool, variant) ({_X}_replicas{_POOL})", "{{pool}} {{variant}}"),
                (
                    f"max by (pool, variant) ({_X}_usable_replicas{_POOL})",
                    "{{pool}} {{variant}} usable",
                ),
            ),
        ),
        _line(
            "Refusals",
            "reqps",
            f"sum by (pool, reason) (rate({_P}_refusals_total{_POOL}[{RATE}]))",
            "{{pool}} {{reason}}",
            "Empty where there were none.",
        ),
        _line(
            "Picks by reason",
            "reqps",
            f"sum by (pool, reason) (rate({_P}_picks_total{_POOL}[{RATE}]))",
            "{{pool}} {{reason}}",
        ),
        _line(
            "Attempts by blame",
            "reqps",
            f"sum by (pool, blame) (rate({_P}_attempts_total{_POOL}[{RATE}]))",
            "{{pool}} {{blame}}",
        ),
    ),
    "Replica": (
        _line("In flight", "short", f"sum by (endpoint) ({_P}_in_flight)", "{{endpoint}}"),
        _line("Queue", "short", f"max by (endpoint) ({_P}_replica_queue)", "{{endpoint}}"),
        _line(
            "Usual time to the first byte",
            "s",
            f"max by (endpoint, pool) ({_P}_replica_first_byte_seconds{_POOL})",
            "{{endpoint}} {{pool}}",
        ),
        _line(
            "Mean duration of good requests",
            "s",
            f"sum by (endpoint, pool) (rate({_P}_replica_request_seconds_sum{_POOL}[1m]))"
            f" / sum by (endpoint, pool) (rate({_P}_replica_request_seconds_count{_POOL}[1m]))",
            "{{endpoint}} {{pool}}",
        ),
        _line(
            "Failed requests",
            "reqps",
            f"sum by (endpoint, pool) (rate({_P}_replica_failed_requests_total{_POOL}[1m]))",
            "{{endpoint}} {{pool}}",
        ),
        _line(
            "Usual speed",
            "Bps",
            f"min by (endpoint, pool) ({_P}_replica_bytes_per_second{_POOL})",
            "{{endpoint}} {{pool}}",
            "Empty where answers come at once.",
        ),
        _line(
            "Age of readings",
            "s",
            f"max by (endpoint) ({_P}_replica_reading_age_seconds)",
            "{{endpoint}}",
        ),
        _line(
            "Conditions",
            "none",
            f"max by (pool, endpoint, condition) ({_P}_replica_condition{_POOL})",
            "{{pool}} {{endpoint}} {{condition}}",
            "Empty while all are well.",
        ),
        _line(
            "Ejections",
            "short",
            f"sum by (pool, cause) (increase({_P}_ejections_total{_POOL}[{RATE}]))",
            "{{pool}} {{cause}}",
            "Empty where there were none.",
        ),
        Panel(
            "Prompt tokens",
            "short",
            (
                (
                    f"sum by (endpoint) (rate({_P}_prefix_prompt_tokens_total[{RATE}]))",
                    "{{endpoint}} sent",
                ),
                (
                    f"sum by (endpoint) (rate({_P}_prefix_predicted_tokens_total[{RATE}]))",
                    "{{endpoint}} predicted to be cached",
                ),
            ),
        ),
        _line(
            "Prompt tokens from caches, as replicas tell it",
            "short",
            f"sum by (endpoint) (rate({_P}_prefix_observed_tokens_total[{RATE}]))",
            "{{endpoint}}",
            "Empty where replicas do not tell it.",
        ),
    ),
    "Picker": (
        _quantiles(
            "Time of a decision", f'{_P}_exchange_seconds_bucket{{part="thinking"}}', "instance"
        ),
        _line(
            "Decisions",
            "reqps",
            f"sum by (instance) (rate({_P}_picks_total[{RATE}]))",
            "{{instance}}",
        ),
        _line("Open streams", "short", f"sum by (instance) ({_P}_open_streams)", "{{instance}}"),
        _line(
            "Failed exchanges",
            "short",
            f"sum by (instance, kind) (rate({_P}_errors_total[{RATE}]))",
            "{{instance}} {{kind}}",
            "Empty where there were none.",
        ),
        _line(
            "Log entries",
            "reqps",
            f"sum by (instance, outcome) (rate({_P}_feedback_entries_total[{RATE}]))",
            "{{instance}} {{outcome}}",
        ),
        _quantiles("Delay of log entries", f"{_P}_feedback_lag_seconds_bucket", "instance"),
        Panel(
            "Telemetry",
            "short",
            (
                (f"sum by (instance) ({_P}_telemetry_endpoints)", "{{instance}} read"),
                (f"sum by (instance) ({_P}_telemetry_stale_endpoints)", "{{instance}} stale"),
            ),
        ),
        _line("Prefix index", "short", f"sum by (instance) ({_P}_index_blocks)", "{{instance}}"),
        _line(
            "Connected to the control server",
            "none",
            f"min by (instance) ({_P}_xds_connected)",
            "{{instance}}",
        ),
    ),
    "Control plane": (
        _line(
            "Clients",
            "short",
            f"sum by (audience, protocol) ({_X}_streams)",
            "{{audience}} {{protocol}}",
        ),
        _line(
            "Pushes",
            "short",
            f"sum by (type) (rate({_X}_pushes_total[{RATE}]))",
            "{{type}}",
        ),
        _line(
            "Rejected messages",
            "short",
            f"sum by (type) (rate({_X}_nacks_total[{RATE}]))",
            "{{type}}",
            "Empty where there were none.",
        ),
        _quantiles("Time to an acknowledgement", f"{_X}_ack_seconds_bucket", "type"),
        _line(
            "Publications",
            "short",
            f"sum by (state) (increase({_X}_publication_seconds_count[{RATE}]))",
            "{{state}}",
        ),
        _line(
            "Resources",
            "short",
            f"max by (audience, type) ({_X}_resources)",
            "{{audience}} {{type}}",
        ),
        Panel(
            "Store",
            "none",
            (
                (f"min({_X}_store_writable)", "writable"),
                (f"max({_X}_unwritten_revisions)", "revisions in memory only"),
            ),
        ),
        Panel(
            "Clients with trouble",
            "short",
            (
                (f"max by (audience) ({_X}_quarantined_clients)", "{{audience}} in quarantine"),
                (f"max by (audience) ({_X}_shared_nodes)", "{{audience}} ids shared"),
                (f"max({_X}_told_replicas)", "replicas told to all"),
            ),
        ),
        _line(
            "Found replicas",
            "short",
            f"max by (pool, state) ({_X}_found_replicas)",
            "{{pool}} {{state}}",
            "Empty where replicas are listed in the fleet file.",
        ),
        Panel(
            "Loads and unloads of models",
            "short",
            (
                (
                    f"sum by (outcome) (increase({_X}_model_operations_total[{RATE}]))",
                    "{{outcome}}",
                ),
                (f"sum by (state) ({_X}_open_model_operations)", "{{state}}"),
            ),
        ),
        Panel(
            "Days until a certificate ends",
            "d",
            (
                (f"{_X}_certificate_left_seconds / 86400", "{{instance}}"),
                (f"{_P}_certificate_left_seconds / 86400", "{{instance}}"),
            ),
            "Empty without TLS.",
        ),
    ),
}


def dashboard(title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    """Return a dashboard as Grafana reads it."""
    texts = [expression for panel in panels for expression, _ in panel.lines]
    variables: list[dict[str, Any]] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    ]
    if any("$pool" in text for text in texts):
        variables.append(
            {
                "name": "pool",
                "type": "query",
                "datasource": {"type": "prometheus", "uid": "${datasource}"},
                "query": f"label_values({_X}_replicas, pool)",
                "refresh": 2,
                "includeAll": True,
                "multi": True,
                "allValue": ".*",
                "current": {"text": "All", "value": "$__all"},
            }
        )
    return {
        "uid": f"tidegate-{name_of(title)}",
        "title": f"Tidegate: {title.lower()}",
        "tags": ["tidegate"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": [_panel(number, panel) for number, panel in enumerate(panels)],
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    at = number * WIDTH
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": at % ROW, "y": at // ROW * HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + place), "expr": expression, "legendFormat": legend}
            for place, (expression, legend) in enumerate(panel.lines)
        ],
    }


def name_of(title: str) -> str:
    """Return the name of a dashboard's file, without its ending."""
    return title.lower().replace(" ", "-")


def fresh() -> dict[Path, str]:
    """Return the text that each file must have."""
    return {
        FOLDER / f"{name_of(title)}.json": json.dumps(dashboard(title, panels), indent=2) + "\n"
        for title, panels in PANELS.items()
    }


def main() -> int:
    """Write the files, or with `--check` compare them; return the exit code."""
    files = fresh()
    stale = [
        path for path, text in files.items() if not path.exists() or path.read_text("utf-8") != text
    ]
    check = "--check" in sys.argv[1:]
    for path in stale:
        if not check:
            path.write_text(files[path], "utf-8")
        print(f"{'stale' if check else 'written'}: observability/dashboards/{path.name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
