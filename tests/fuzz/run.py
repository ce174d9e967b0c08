"""The coverage-guided fuzzer: ``PYTHONPATH=tests:. python -m fuzz.run [seconds] [target]``.

It needs ``atheris`` (``pip install atheris``), which is no dependency of the project. It starts
from ``corpus.txt`` and keeps what reaches new code in the temporary folder that it names, where
also an input that breaks a promise is left. Targets: ``request`` (default), ``declared``,
``metrics``, ``loads``, ``wire``, ``kv``, ``log``, ``attempts``, ``workers``, ``h2``.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ext_proc"]):
    from fuzz import attempts, declared, h2, kv, log, targets, wire, workers

from fuzz.corpus import inputs

TARGETS = {
    "request": targets.one_input,
    "declared": declared.one_request,
    "metrics": targets.metrics_page,
    "loads": targets.load_report,
    "wire": wire.one_stream,
    "kv": kv.one_batch,
    "log": log.one_message,
    "attempts": attempts.one_stream,
    "workers": workers.one_stream,
    "h2": h2.one_connection,
}


def main() -> None:
    """Fuzz for a while; exit with an error if an input breaks a promise."""
    seconds = sys.argv[1] if len(sys.argv) > 1 else "60"
    target = sys.argv[2] if len(sys.argv) > 2 else "request"
    found = Path(tempfile.gettempdir()) / f"tidegate-fuzz-{target}"
    found.mkdir(exist_ok=True)
    for case in inputs(target):
        (found / case.name).write_bytes(case.data)
    options = [
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-timeout=5",
        "-rss_limit_mb=2048",
        f"-artifact_prefix={found}/",
        str(found),
    ]
    atheris.Setup([sys.argv[0], *options], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
