"""etcd with its tools, Kubernetes' servers and Helm, built from the Go module proxy.

Rules:

1. What is built is what ``go/*/go.mod`` and ``go.sum`` name, checked by their hashes.
2. Binaries are in ``TIDEGATE_KUBERNETES_HOME``, by default ``~/.cache/tidegate-kubernetes``, in a
   folder named by the version; each is built once, in minutes, at low priority.
3. What fails raises: who asks for a real API server gets no silence.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

VERSION = "v1.36.3"
HELM = "helm-v3.22.0"
"""Helm's binary, named by its version in ``go/helm/go.mod``."""
HERE = Path(__file__).parent
_MAIN = "k8s.io/component-base/version"
_LINKED = f"-X {_MAIN}.gitVersion={VERSION} -X {_MAIN}.gitMajor=1 -X {_MAIN}.gitMinor=36"
PROGRAMS = {
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3"),
    "etcdctl": ("etcd", "go.etcd.io/etcd/etcdctl/v3"),
    "etcdutl": ("etcd", "go.etcd.io/etcd/etcdutl/v3"),
    "kube-apiserver": ("kubernetes", "k8s.io/kubernetes/cmd/kube-apiserver"),
    "kube-controller-manager": ("kubernetes", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    HELM: ("helm", "helm.sh/helm/v3/cmd/helm"),
}
"""The binaries: folder of the module file, and package."""


def home() -> Path:
    """Return the folder of this version's binaries."""
    given = os.environ.get("TIDEGATE_KUBERNETES_HOME")
    root = Path(given) if given else Path.home() / ".cache" / "tidegate-kubernetes"
    return root / VERSION


def built(name: str) -> Path:
    """Return the path of a binary; build it if it is not there.

    Raises:
        RuntimeError: There is no Go, or it cannot be built; Go's output is above.
    """
    path = home() / name
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    folder, package = PROGRAMS[name]
    made = path.with_name(f"{name}.new")
    print(f"building {name}, once", flush=True)  # noqa: T201 - it takes minutes
    flags = ("-trimpath", "-tags", "providerless", "-ldflags", f"-s -w {_LINKED}")
    _go(HERE / "go" / folder, "build", *flags, "-o", str(made), package)
    made.rename(path)
    return path


def module(path: str, version: str) -> Path:
    """Return the folder of a Go module's files, from Go's own cache or the proxy.

    Raises:
        RuntimeError: It cannot be had.
    """
    said = _go(HERE / "go" / "manifests", "mod", "download", "-json", f"{path}@{version}")
    return Path(json.loads(said)["Dir"])


def _go(folder: Path, *command: str) -> str:
    go = shutil.which("go")
    if go is None:
        raise RuntimeError("there is no `go`: install Go 1.26 or later, from https://go.dev/dl")
    done = subprocess.run(
        [shutil.which("nice") or "nice", "-n", "19", go, *command],
        cwd=folder,
        env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"go {' '.join(command)}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout
