"""Records what a vLLM engine replays of its KV events, and what it hit; run by its own Python.

    python record_vllm.py HTTP_PORT REPLAY_PORT FOLDER

The engine is fresh, with blocks of 32 tokens and 120 of them (``serve_vllm.py``). Writes
``replay.jsonl`` (the frames that a DEALER socket receives, in hex) and ``hits.jsonl`` (each request
and what it read from the cache by ``usage.prompt_tokens_details.cached_tokens``, with the number of
batches that were published before it). Then it empties the cache and writes ``recomputed.jsonl``
and ``recomputed-hits.jsonl``, in which some prompts are computed from their root.
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


REPORT = {"vllm_xargs": {"kv_cache_report_mode": "full"}}
RECOMPUTED = {"prompt_logprobs": 0}


def ask(port: str, tokens: list[int], members: dict[str, object]) -> int:
    """Send a prompt; return how many of its tokens the engine read from its cache."""
    body = {"model": "tiny", "prompt": tokens, "max_tokens": 1, "temperature": 0, **members}
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


def record(
    http: str, replayed: str, asked: list[tuple[list[int], dict[str, object]]], files: list[Path]
) -> None:
    """Send prompts; write what the engine replays of them, and what each hit."""
    first = len(replay(replayed, 0)) - 1
    hits = []
    for tokens, members in asked:
        time.sleep(QUIET_S)
        before = len(replay(replayed, first)) - 1
        cached = ask(http, tokens, members)
        report, again = members == REPORT, members == RECOMPUTED
        hit = {"batches": before, "report": report, "cached": cached, "prompt": tokens}
        hits.append({**hit, "recomputed": True} if again else hit)
    time.sleep(QUIET_S)
    frames = replay(replayed, first)
    lines = [json.dumps([frame.hex() for frame in each]) for each in frames]
    files[0].write_text("\n".join(lines) + "\n")
    files[1].write_text("".join(json.dumps(each) + "\n" for each in hits))


def empty(http: str) -> None:
    """Empty the engine's cache."""
    request = urllib.request.Request(f"http://127.0.0.1:{http}/reset_prefix_cache", method="POST")
    with urllib.request.urlopen(request):  # noqa: S310 - loopback
        time.sleep(QUIET_S)


def main() -> None:
    """Send the prompts and write the files."""
    http, replayed, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    shared, other = prompt(1, 5, 3), prompt(2, 4)
    plain: dict[str, object] = {}
    asked = [
        (shared, plain),
        (shared, REPORT),  # its five blocks are reported again, as reused
        (shared, REPORT),
        (other, plain),
        (other, plain),  # as long as its blocks: the last one is computed again
        (shared[: 2 * BLOCK] + prompt(3, 2), REPORT),
        *((prompt(number, 20), plain) for number in range(10, 16)),  # these evict all others
        (shared, plain),
        (other, REPORT),
        (shared, REPORT),
    ]
    record(http, replayed, asked, [folder / "replay.jsonl", folder / "hits.jsonl"])
    empty(http)
    asked = [
        (shared, plain),
        (shared, RECOMPUTED),  # a copy of its five blocks
        (shared, REPORT),  # no copy
        *((prompt(number, 20), plain) for number in range(10, 15)),
        (prompt(15, 11), plain),  # evicts some of the first copy
        (shared, plain),
        *((prompt(number, 20), plain) for number in range(16, 22)),  # evict the second, too
        (shared, plain),
    ]
    files = [folder / "recomputed.jsonl", folder / "recomputed-hits.jsonl"]
    record(http, replayed, asked, files)


if __name__ == "__main__":
    main()
