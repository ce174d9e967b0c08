"""Starts one small vLLM engine on the CPU; run by the engines' Python.

python serve_vllm.py MODEL_FOLDER BLOCK_SIZE BLOCKS SEQUENCES HTTP_PORT EVENTS_PORT REPLAY_PORT
"""

from __future__ import annotations

import json
import os
import sys

SETTINGS = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # opens /reset_prefix_cache
}
SWITCHES = (
    "enforce-eager",
    "enable-prefix-caching",
    "enable-prompt-tokens-details",
    "enable-auto-tool-choice",
    "trust-request-chat-template",  # `record_chats.py` brings its own
)


def arguments(model: str, size: str, blocks: str, most: str, ports: list[str]) -> list[str]:
    """Return the command line of ``vllm``."""
    http, events, replay = ports
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
        "max-num-seqs": most,
        "block-size": size,
        "num-gpu-blocks-override": blocks,
        "seed": "0",
        "generation-config": "vllm",
        "gpu-memory-utilization": "0.15",
        "tool-call-parser": "hermes",
        "kv-events-config": json.dumps(published),
    }
    pairs = [word for name, value in options.items() for word in (f"--{name}", value)]
    return ["vllm", "serve", model, *pairs, *(f"--{name}" for name in SWITCHES)]


if __name__ == "__main__":
    folder, block_size, count, sequences, *its_ports = sys.argv[1:]
    os.environ.update(SETTINGS)
    import vllm.entrypoints.cli.main as cli

    sys.argv = arguments(folder, block_size, count, sequences, its_ports)
    cli.main()
