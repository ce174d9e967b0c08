"""Paths of engines that serve without Triton, by the form of their requests.

One source for the picker, which reads the bodies, and for the control server, whose Envoys answer
in the caller's dialect. No path is open because it is named here: a pool's `match.paths` opens it.

Sources: OpenAI's and Anthropic's API references; vLLM 0.32 (``entrypoints/pooling/scoring``, for
`score` and `rerank`, which Jina's clients call too); SGLang (``http_server.py``, for `/generate`).
"""

from __future__ import annotations

from typing import Final

OPENAI_ENDINGS: Final = ("/v1/completions", "/v1/chat/completions", "/v1/embeddings")
"""Ends of the paths of completions, chat completions and embeddings."""

RESPONSES_ENDING: Final = "/v1/responses"
MESSAGES_ENDING: Final = "/v1/messages"
SCORE_ENDINGS: Final = ("/v1/score", "/v1/rerank", "/v2/rerank")
SCORE_PATHS: Final = ("/score", "/rerank")
"""Whole paths, as anything may end like this."""

SGLANG_PATH: Final = "/generate"
"""A whole path; its requests name no model."""

ANY_MODEL_PATHS: Final = (*OPENAI_ENDINGS, RESPONSES_ENDING, MESSAGES_ENDING)
"""Paths of a pool whose `match` says nothing."""

MODEL_ENDINGS: Final = (*OPENAI_ENDINGS, RESPONSES_ENDING, MESSAGES_ENDING, *SCORE_ENDINGS)
"""Ends of the paths of requests whose body names the model, as ``base:adapter`` too."""

ANTHROPIC_PATHS: Final = r".*/v1/messages([/?].*)?"
"""Pattern of the paths whose callers expect Anthropic's error object."""

OPENAI_PATHS: Final = (
    r"(/v1|.*/v1/(chat/)?completions|.*/v1/embeddings)([/?].*)?",
    r".*/v1/(responses|score|rerank)([/?].*)?",
    r"((.*/v2)?/rerank|/score|/generate)([/?].*)?",
)
"""Patterns of the paths whose callers expect OpenAI's error object, but for ``ANTHROPIC_PATHS``.
Envoy takes no pattern that compiles to more than 100 instructions, and refuses the listener."""

ANTHROPIC_ERRORS: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    431: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Anthropic's types of errors by status."""


def anthropic_error(status: int) -> str:
    """Return Anthropic's type of an error; its clients retry those at 500 and above, and 429."""
    other = "invalid_request_error" if status < 500 else "api_error"  # noqa: PLR2004 - HTTP
    return ANTHROPIC_ERRORS.get(status, other)
