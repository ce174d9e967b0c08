"""The Helm chart, rendered by a real Helm, and the plain manifests that are made of it.

``PYTHONPATH=tests:. python -m kubernetes.chart`` writes ``deploy/kubernetes`` (`make manifests`).

Rules:

1. A manifest is what a set of values adds to another set: the objects of the second are in a file
   of their own.
2. ``DIGESTS`` in the same folder says of which chart the files were rendered, so that a change of
   one without the other is found without Helm.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from kubernetes.binaries import HELM, VERSION, built

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "deploy/chart"
VALUES: Final = sorted((CHART / "ci").glob("*.yaml"))
MANIFESTS: Final = ROOT / "deploy/kubernetes"
DIGESTS: Final = "rendered.json"
RELEASE, NAMESPACE = "tidegate", "infer"
_HEAD: Final = (
    "# Rendered from deploy/chart by `make manifests`: change the chart, not this file.\n"
)
_FRONT: Final = "form=picker,front.kind="


class Manifest(NamedTuple):
    """A file of plain manifests, by values (``--set``)."""

    values: str
    without: str | None = None
    """Values whose objects are left out."""


FILES: Final = {
    "edge.yaml": Manifest(""),
    "picker-only.yaml": Manifest("form=picker"),
    "envoy-gateway.yaml": Manifest(f"{_FRONT}envoyGateway,front.className=eg", "form=picker"),
    "istio.yaml": Manifest(f"{_FRONT}istio", "form=picker"),
    "inference-pool.yaml": Manifest(
        f"{_FRONT}inferencePool,front.className=kgateway", "form=picker"
    ),
    # Their NetworkPolicy depends on the form.
    "triton.yaml": Manifest(
        "networkPolicy.enabled=false,triton.enabled=true", "networkPolicy.enabled=false"
    ),
    "vllm.yaml": Manifest(
        "networkPolicy.enabled=false,vllm.enabled=true", "networkPolicy.enabled=false"
    ),
}


def helm(*arguments: str) -> str:
    """Run Helm; return what it prints.

    Raises:
        RuntimeError: It fails; with its words.
    """
    done = subprocess.run(
        [str(built(HELM)), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"helm {' '.join(arguments)}: {done.stdout}{done.stderr}")
    return done.stdout


def render(*options: str, namespace: str = NAMESPACE) -> str:
    """Return the chart's objects for values (``--set``, ``--values``) as YAML."""
    place = ("--namespace", namespace, "--kube-version", VERSION)
    return helm("template", RELEASE, str(CHART), *place, *options)


def objects(text: str) -> list[dict[str, Any]]:
    """Return the objects of a YAML text."""
    return [each for each in yaml.safe_load_all(text) if each]


def manifest(made: Manifest) -> str:
    """Return the text of a file of plain manifests."""
    left_out = set() if made.without is None else set(_documents(made.without))
    kept = [each for each in _documents(made.values) if each not in left_out]
    return _HEAD + "---\n".join(kept)


def _documents(values: str) -> list[str]:
    text = render("--set", values)
    text = re.sub(r"^# Source: .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"\n[ \t]*(?=\n)", "", text)
    found = (each.strip("\n") + "\n" for each in re.split(r"^---\n", text, flags=re.MULTILINE))
    return [each for each in found if each.strip()]


def digests() -> dict[str, str]:
    """Return a digest (SHA-256) of the chart, and of each file of plain manifests."""
    chart = hashlib.sha256()
    for path in sorted(CHART.rglob("*")):
        if path.is_file() and path.parent.name != "ci":
            chart.update(f"{path.relative_to(CHART)}\0".encode() + path.read_bytes() + b"\0")
    found = {"chart": chart.hexdigest()}
    for path in sorted(MANIFESTS.glob("*.yaml")):
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def main() -> None:
    """Write all files of plain manifests."""
    for path in MANIFESTS.glob("*.yaml"):
        if path.name not in FILES:
            path.unlink()
    for name, made in FILES.items():
        (MANIFESTS / name).write_text(manifest(made))
    (MANIFESTS / DIGESTS).write_text(json.dumps(digests(), indent=1) + "\n")


if __name__ == "__main__":
    main()
