"""Starts small vLLM engines on the CPU; run by the Python of the engines' environment.

    python serve_vllm.py MODEL_FOLDER LOG_FOLDER BLOCK_SIZE BLOCKS \
        NAME:HTTP_PORT:EVENTS_PORT:REPLAY_PORT...

vLLM is imported once; each engine is a child that has it already. A child leads a session of its
own and writes to ``NAME.log``; its id is in ``NAME.pid``.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SETTINGS = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
}


def arguments(
    model: str, blocks: tuple[str, str], http: str, events: str, replay: str
) -> list[str]:
    """Return the command line of one engine; ``blocks`` are the size and number of its blocks."""
    published = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{events}",
        "replay_endpoint": f"tcp://127.0.0.1:{replay}",
    }
    options = {
        "served-model-name": "tiny",
        "host": "127.0.0.1",
        "port": http,
        "load-format": "dummy",
        "dtype": "float32",
        "max-model-len": "2048",
        "max-num-seqs": "8",
        "block-size": blocks[0],
        "num-gpu-blocks-override": blocks[1],
        "seed": "0",
        "generation-config": "vllm",
        "gpu-memory-utilization": "0.15",
        "tool-call-parser": "hermes",
        "kv-events-config": json.dumps(published),
    }
    switches = (
        "enforce-eager",
        "enable-prefix-caching",
        "enable-prompt-tokens-details",
        "enable-auto-tool-choice",
    )
    pairs = [word for name, value in options.items() for word in (f"--{name}", value)]
    return ["vllm", "serve", model, *pairs, *(f"--{name}" for name in switches)]


def main() -> None:
    """Fork the engines and wait for them."""
    model, logs, size, number, *engines = sys.argv[1:]
    os.environ.update(SETTINGS)
    import vllm.entrypoints.cli.main as cli  # noqa: PLC0415 - in the engines' environment only
    import vllm.entrypoints.openai.api_server  # noqa: PLC0415 - the same
    import vllm.model_executor.models.llama  # noqa: PLC0415 - the same
    import vllm.v1.engine.async_llm  # noqa: PLC0415 - the same
    import vllm.v1.engine.core  # noqa: PLC0415, F401 - the same; imported for the children

    children = []
    for engine in engines:
        name, *ports = engine.split(":")
        child = os.fork()
        if child == 0:
            os.setsid()
            log = os.open(f"{logs}/{name}.log", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
            os.dup2(log, 1)
            os.dup2(log, 2)
            sys.argv = arguments(model, (size, number), *ports)
            cli.main()
            os._exit(0)
        children.append(child)
        Path(f"{logs}/{name}.pid").write_text(str(child))
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
