"""Records what a vLLM engine replays of its KV events, and what it hit; run by its own Python.

    python record_vllm.py HTTP_PORT REPLAY_PORT FOLDER

The engine is fresh, with blocks of 32 tokens and 120 of them (``serve_vllm.py``). Writes
``replay.jsonl`` (the frames that a DEALER socket receives, in hex) and ``hits.jsonl`` (each request
and what it read from the cache by ``usage.prompt_tokens_details.cached_tokens``, with the number of
batches that were published before it).
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from pathlib import Path

import zmq

BLOCK = 32
QUIET_S = 1.0
"""Time after which an engine has published what a request caused."""


def prompt(first: int, blocks: int, more: int = 0) -> list[int]:
    """Return token ids from 4 to 123, which take one byte each; ``first`` tells prompts apart."""
    return [
        4 + (first * 7 + at * at + at // 5 * first) % 120 for at in range(blocks * BLOCK + more)
    ]


def ask(port: str, tokens: list[int], *, report: bool = False) -> int:
    """Send a prompt; return how many of its tokens the engine had cached."""
    body = {"model": "tiny", "prompt": tokens, "max_tokens": 1, "temperature": 0}
    if report:
        body["vllm_xargs"] = {"kv_cache_report_mode": "full"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - loopback
        usage = json.load(answer)["usage"]
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def replay(port: str, first: int) -> list[list[bytes]]:
    """Return the frames of each reply to a replay request."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send_multipart([b"", first.to_bytes(8, "big")])
        found = []
        while not found or found[-1][-2] != (-1).to_bytes(8, "big", signed=True):
            if not socket.poll(5000):
                raise TimeoutError("no reply to the replay request")
            found.append(socket.recv_multipart())
        return found


def main() -> None:
    """Send the prompts and write both files."""
    http, replayed, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    shared, other = prompt(1, 5, 3), prompt(2, 4)
    asked = [
        (shared, False),
        (shared, True),  # its five blocks are reported again, as reused
        (shared, True),
        (other, False),
        (other, False),  # as long as its blocks: the last one is computed again
        (shared[: 2 * BLOCK] + prompt(3, 2), True),
        *((prompt(number, 20), False) for number in range(10, 16)),  # these evict all others
        (shared, False),
        (other, True),
        (shared, True),
    ]
    hits = []
    for tokens, report in asked:
        time.sleep(QUIET_S)
        before = len(replay(replayed, 0)) - 1
        cached = ask(http, tokens, report=report)
        hits.append({"batches": before, "report": report, "cached": cached, "prompt": tokens})
    time.sleep(QUIET_S)
    frames = replay(replayed, 0)
    lines = [json.dumps([frame.hex() for frame in each]) for each in frames]
    (folder / "replay.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "hits.jsonl").write_text("".join(json.dumps(each) + "\n" for each in hits))


if __name__ == "__main__":
    main()
