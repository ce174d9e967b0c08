"""Cost of parsing a request: CPU microseconds per body, by form and size.

Run ``python -m bench.cost.parse``. Each row is the best of several rounds and includes the head,
the body and the prompt's blocks; ``cut`` is a truncated body, as in body mode ``peek``. The last
rows are the cost of a pool's tokenizer: a byte-level BPE trained on Tidegate's documentation, and
of suspicion: what each request with a whole body pays from its pick to its good answer, and its
fingerprint while anything is held, beside two hashes that were not chosen. Needs the extra ``dev``.
"""

from __future__ import annotations

import json
import struct
import time
from hashlib import blake2b
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tritonclient.grpc import service_pb2
from xxhash import xxh3_128_digest

from ext_proc.blame.alike import MAX_BODIES, MAX_EDITS, TOTAL_BYTES, Alike
from ext_proc.blame.fingerprint import BYTES, Fingerprints
from ext_proc.control.tokenizer_files import FileTokenizer
from ext_proc.requests import BadRequest, prompt_blocks, read_body, read_head, token_blocks
from ext_proc.routing.suspicion import Suspicion
from ext_proc.routing.values.request import Features, Form, Request
from ext_proc.telemetry.dialects import read_all

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
ROUND_S = 0.1
BLOCK_CHARS = 256
BLOCK_TOKENS = 64
SIZE = 4 * 2**20 - 64
GRPC = "/inference.GRPCInferenceService/ModelInfer"
INFER = "/v2/models/toy/infer"
GENERATE = "/v2/models/toy/generate"
CHAT = "/v1/chat/completions"
LENGTH = "inference-header-content-length"


def best_us(call: Callable[[], object]) -> float:
    """Return the duration of one call, microseconds, the best of ``ROUNDS``."""
    call()
    start = time.thread_time()
    call()
    times = max(1, int(ROUND_S / max(time.thread_time() - start, 1e-6)))
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, (time.thread_time() - start) / times)
    return best * 1e6


def elements(datatype: str, raw: bytes) -> int:
    """Return the elements of a tensor: one text, or numbers of four bytes."""
    return 1 if datatype == "BYTES" else len(raw) // 4


def grpc_body(name: str, datatype: str, raw: bytes) -> bytes:
    """Return a framed ModelInferRequest with one raw tensor."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(
        name=name, datatype=datatype, shape=[1, elements(datatype, raw)]
    )
    message = service_pb2.ModelInferRequest(
        model_name="toy", id="r", inputs=[tensor], raw_input_contents=[raw]
    )
    message.parameters["sequence_id"].int64_param = 7
    data: bytes = message.SerializeToString()
    return struct.pack(">BI", 0, len(data)) + data


def http_body(name: str, datatype: str, raw: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a binary infer body with one tensor, and its headers."""
    document = {
        "id": "r",
        "inputs": [
            {
                "name": name,
                "shape": [elements(datatype, raw)],
                "datatype": datatype,
                "parameters": {"binary_data_size": len(raw)},
            }
        ],
    }
    head = json.dumps(document).encode()
    return head + raw, {LENGTH: str(len(head))}


def chat_body(size: int) -> bytes:
    """Return a chat of turns of about 400 characters."""
    turn = "What does the tide gauge say at noon? " * 10
    messages = [
        {"role": ("user", "assistant")[index % 2], "content": f"{index} {turn}"}
        for index in range(max(1, size // 420))
    ]
    return json.dumps({"model": "toy", "messages": messages, "stream": True}).encode()


def cases() -> list[tuple[str, str, dict[str, str], bytes]]:
    """Return the name, path, headers and body of each row."""
    rows: list[tuple[str, str, dict[str, str], bytes]] = []
    for kilobytes in (1, 2, 8, 32, 128):
        text = b"tide " * (kilobytes * 1024 // 5)
        element = struct.pack("<I", len(text)) + text
        size = f"{kilobytes} KB"
        rows.append(
            (f"gRPC ModelInfer {size}", GRPC, {}, grpc_body("text_input", "BYTES", element))
        )
        body, headers = http_body("text_input", "BYTES", element)
        rows.append((f"HTTP infer, binary {size}", INFER, headers, body))
        tensor = {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": [text.decode()]}
        rows.append(
            (f"HTTP infer, JSON {size}", INFER, {}, json.dumps({"inputs": [tensor]}).encode())
        )
        generate = json.dumps({"text_input": text.decode(), "max_tokens": 16}).encode()
        rows.append((f"generate {size}", GENERATE, {}, generate))
        rows.append((f"OpenAI chat {size}", CHAT, {}, chat_body(kilobytes * 1024)))
    image = bytes(20 * 2**20)
    rows.append(("gRPC ModelInfer 20 MB", GRPC, {}, grpc_body("image", "FP32", image)))
    body, headers = http_body("image", "FP32", image)
    rows.append(("HTTP infer, binary 20 MB", INFER, headers, body))
    return rows


def hostile() -> list[tuple[str, bytes]]:
    """Return bodies of just under 4 MiB that maximize the cost of parsing."""
    rows = {
        "empty arrays": b"[],",
        "arrays in arrays": b"[[[[[[[[[[]]]]]]]]]],",
        "objects": b'{"a":{}},',
        "short texts": b'"",',
        "different keys": b"",
        "numbers": b"1,",
        "floats": b"1.23456789e-300,",
        "escapes": b'"\\"\\u00e9",',
        "messages": b'{"role":"user","content":""},',
        "messages with names": b'{"name":"","role":"user","content":[]},',
        "parts": b'{"role":"","content":[{},{},{},{},{},{},{},{}]},',
    }
    bodies = []
    for name, unit in rows.items():
        content = unit * (SIZE // len(unit)) if unit else b""
        if not unit:
            content = b",".join(b'{"%x":0}' % index for index in range(SIZE // 11)) + b","
        bodies.append((name, b'{"messages":[' + content[:-1] + b"]}"))
    bodies.append(("one long text", b'{"messages":[],"prompt":"' + b"x" * SIZE + b'"}'))
    bodies.append(("token ids", b'{"prompt":[' + b"31999," * (SIZE // 6) + b"0]}"))
    return bodies


def tokenising() -> None:
    """Print the cost of exact tokenization."""
    pages = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.train_from_iterator([text], trainers.BpeTrainer(vocab_size=8_000, show_progress=False))
    tokenizer = FileTokenizer(model)
    print(f"\n{'exact tokens':<28}{'blocks, us':>12}{'us per KB':>12}")
    for kilobytes in (1, 8, 32, 64):
        data = (text.encode() * 3)[: kilobytes * 1024]
        features = Features(Form.OPENAI, model="toy", prompt=data)
        cost = best_us(lambda: token_blocks(features, BLOCK_CHARS, BLOCK_TOKENS, tokenizer))  # noqa: B023 - called at once
        print(f"{f'{kilobytes} KB of text':<28}{cost:>12.1f}{cost / kilobytes:>12.1f}")


def suspecting() -> None:
    """Print what a request's body costs before and after a replica has died."""
    made, suspicion, tickets = Fingerprints(7), Suspicion(lambda _: True), count()
    print(f"\n{'suspicion':<28}{'us':>12}{'GB/s':>12}")
    for size in (2_048, 32_768, 2**20):
        body = bytes(size)
        request = Request("llm", None, "http", Features(Form.GENERATE, model="m"), body=body)

        def keep(request: Request = request) -> None:
            ticket = next(tickets)
            suspicion.picked(ticket, "r1", request, 0.0)
            suspicion.answered(ticket, "r1", 0.0)

        rows: dict[str, Callable[[], object]] = {
            "kept": keep,
            "fingerprint": lambda body=body: made.of("llm", "m", body),  # type: ignore[misc]  # default binds
            "BLAKE2b": lambda body=body: blake2b(body, digest_size=BYTES, key=b"key").digest(),  # type: ignore[misc]  # default binds
            "XXH3": lambda body=body: xxh3_128_digest(body, seed=7),  # type: ignore[misc]  # default binds
        }
        for name, call in rows.items():
            cost = best_us(call)
            print(f"{f'{name}, {size} bytes':<28}{cost:>12.2f}{size / cost / 1000:>12.2f}")
    comparing()


def comparing() -> None:
    """Print what the comparison of a body with suspects of its length costs."""
    print(f"\n{'near copies':<28}{'other, us':>12}{'near, us':>12}{'common, us':>12}")
    draw = Random(1)  # noqa: S311 - test data
    for size in (2_048, 32_768, 150_000):
        body = draw.randbytes(size)
        kept, beside = Alike(), Alike()
        for number in range(min(MAX_BODIES, TOTAL_BYTES // size)):
            name = number.to_bytes(BYTES)
            kept.keep(name, "llm", draw.randbytes(size) if number else body)
            beside.keep(name, "llm", body[: size // 2] + draw.randbytes(size - size // 2))
        near, other = bytearray(body), draw.randbytes(size)
        for at in range(0, size, size // MAX_EDITS + 1):
            near[at] ^= 1
        costs = [
            best_us(lambda kept=each, body=bytes(one): kept.kinds("llm", body))  # type: ignore[misc]  # default binds
            for each, one in ((kept, other), (kept, near), (beside, body))
        ]
        print(f"{size:<28}" + "".join(f"{cost:>12.1f}" for cost in costs))


def main() -> None:
    """Print the table."""
    print(f"{'form and size':<28}{'whole, us':>12}{'cut, us':>12}")
    for name, path, headers, body in cases():

        def read(
            complete: bool,
            path: str = path,
            headers: dict[str, str] = headers,
            body: bytes = body,
        ) -> object:
            part = body if complete else memoryview(body)[: min(len(body) * 9 // 10, 131_072)]
            features = read_body(read_head("POST", path, headers), headers, part, complete=complete)
            return prompt_blocks(features, BLOCK_CHARS)

        whole = best_us(lambda read=read: read(complete=True))  # type: ignore[misc]  # default binds
        cut = best_us(lambda read=read: read(complete=False))  # type: ignore[misc]  # default binds
        print(f"{name:<28}{whole:>12.1f}{cut:>12.1f}")
    print(f"\n{'hostile JSON':<28}{'whole, ms':>12}{'cut, ms':>12}")
    for name, body in hostile():

        def attempt(complete: bool, body: bytes = body) -> object:
            try:
                features = read_body(read_head("POST", CHAT, {}), {}, body, complete=complete)
            except BadRequest as error:
                return error
            return prompt_blocks(features, BLOCK_CHARS)

        whole = best_us(lambda attempt=attempt: attempt(complete=True))  # type: ignore[misc]  # default binds
        cut = best_us(lambda attempt=attempt: attempt(complete=False))  # type: ignore[misc]  # default binds
        print(f"{name:<28}{whole / 1000:>12.2f}{cut / 1000:>12.2f}")
    page = "".join(
        f'nv_inference_{kind}{{model="m{index}",version="1"}} {index}\n'
        for index in range(4)
        for kind in ("pending_request_count", "request_success", "count", "queue_duration_us")
    )
    print(f"{'metrics page, 4 models':<28}{best_us(lambda: read_all(page, 0.0)):>12.1f}")
    tokenising()
    suspecting()


if __name__ == "__main__":
    main()
