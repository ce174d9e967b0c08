"""Phase: each form of request that Triton supports succeeds through Envoy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tidegate.demo.report import PhaseFinding, judge

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tidegate.demo.scene import Scene

TITLE: Final = "each form of request succeeds"
PROMPT: Final = "Name the gates of the harbour."
TOKENS: Final = 8
SEQUENCE: Final = (3, 4, 5)


async def run(scene: Scene) -> PhaseFinding:
    """Send one request of each form."""
    clients = scene.clients

    async def grpc_infer() -> str:
        return f"answered by {await clients.infer_grpc()}"

    async def grpc_stream() -> str:
        answer = await clients.stream_grpc(PROMPT, TOKENS)
        return f"{TOKENS} tokens from {answer.replica}: {answer.text.strip()}"

    async def http_infer() -> str:
        return f"answered by {await clients.infer_http()}"

    async def generate() -> str:
        answer = await clients.generate(PROMPT, TOKENS)
        return f"answer from {answer.replica}: {answer.text.strip()}"

    async def generate_stream() -> str:
        answer = await clients.generate_stream(PROMPT, TOKENS)
        return f"{TOKENS} tokens from {answer.replica}: {answer.text.strip()}"

    async def sequence() -> str:
        total, replicas = await clients.count_sequence(1, SEQUENCE)
        if total != sum(SEQUENCE) or len(replicas) != 1:
            raise ValueError(f"total {total} from {len(replicas)} replicas, not {sum(SEQUENCE)}")
        return f"{' + '.join(map(str, SEQUENCE))} = {total}, all on {replicas.pop()}"

    forms: tuple[tuple[str, str, Callable[[], Awaitable[str]]], ...] = (
        ("gRPC ModelInfer", "vision", grpc_infer),
        ("gRPC ModelStreamInfer", "toy-llm", grpc_stream),
        ("HTTP infer (binary)", "vision", http_infer),
        ("HTTP generate", "toy-llm", generate),
        ("HTTP generate_stream", "toy-llm", generate_stream),
        ("gRPC sequence", "counter", sequence),
    )
    rows, problems = [], []
    for form, model, ask in forms:
        try:
            rows.append((form, model, await ask()))
        except Exception as error:  # noqa: BLE001 - any failure is the result of this form
            rows.append((form, model, f"failed: {error}"))
            problems.append(f"{form} failed")
    return PhaseFinding(
        TITLE,
        ("form", "model", "answer"),
        tuple(rows),
        judge(problems, f"all {len(forms)} forms were answered"),
    )
