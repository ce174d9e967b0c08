"""The table of accepted differences between a call to the gateway and one to a replica.

The documentation's table is made of it. A difference that is not here fails
``tests/lab/test_differential.py``, and so does a call named here whose answer does not have it.
"""

from __future__ import annotations

from typing import Any, Final

from support.differential.difference import Difference


def _digits(value: Any) -> bool:
    return isinstance(value, str) and value.isdigit()


def _text(value: Any) -> bool:
    """Return whether a body has an error in Triton's form or in OpenAI's."""
    error = value.get("error") if isinstance(value, dict) else None
    if isinstance(error, dict):
        return error.keys() == {"code", "message", "param", "type"} and bool(error["message"])
    return isinstance(error, str) and bool(error)


def _words(value: Any) -> bool:
    return isinstance(value, str) and bool(value) and not value.startswith("{")


def _refusal(
    reason: str, status: int, code: str, body: Any = _text, words: Any = _words
) -> dict[str, Any]:
    """Return the facets of a refusal over HTTP, over gRPC and in clients.

    Envoy closes a connection of HTTP/1 after 400, and where it answers before the body has come.
    """
    return {
        "version": "HTTP/1.1",
        "status": lambda value: str(value) in {str(status), f"StatusCode.{code}"},
        "body": body,
        "closed": None,
        "header content-type": "application/json",
        "header content-length": _digits,
        "header connection": "close",
        "header x-tidegate-reason": reason,
        "code": code,
        "details": words,
        "replies": [],
        "trailing x-tidegate-reason": reason,
        "message": words,
        "result": None,
    }


def _marked(*reasons: str) -> dict[str, Any]:
    """Return the facets of a refusal in Triton's words."""
    return {
        "closed": None,
        "header content-type": "application/json",
        "header connection": "close",
        "header x-tidegate-reason": lambda value: value in reasons,
        "trailing x-tidegate-reason": lambda value: value in reasons,
    }


_NOWHERE: Final = "no pool of this gateway serves this path or model"
_ONE: Final = "this call addresses one replica and is not balanced; send it to the replica itself"
_ADMIN: Final = "this call changes replicas; send it to the gateway's port for operators"
_MEMORY: Final = (
    "shared memory is that of one host and replica; register it with the replica itself"
)
_INDEX: Final = (
    "http: repository index",
    "http: index of the ready",
    "gRPC: repository index",
    "tritonclient *: get_model_repository_index",
)
_CHANGES: Final = (
    "http: load a model",
    "http: unload a model",
    "http: trace settings*",
    "http: log settings",
    "gRPC: load",
    "gRPC: unload",
    "gRPC: trace settings",
    "gRPC: log settings",
    "tritonclient *: get_trace_settings*",
    "tritonclient *: get_log_settings",
)
_SHARED_MEMORY: Final = (
    "http: *shared memory",
    "http: unregister memory",
    "gRPC: *shared memory",
    "gRPC: unregister memory",
    "tritonclient *: get_*_shared_memory_status*",
)
_UNKNOWN_PATH: Final = _refusal("unknown-path", 404, "UNIMPLEMENTED", words=_NOWHERE)

ACCEPTED: Final[tuple[Difference, ...]] = (
    Difference(
        "proxy's headers",
        "Answers have `server: envoy`; those of a replica also `x-envoy-upstream-service-time`"
        " (milliseconds), over gRPC as metadata.",
        "They show which hop answered, and how long the replica took.",
        {
            f"{part} {name}": value
            for part in ("header", "initial", "trailing")
            for name, value in (
                ("server", "envoy"),
                ("x-envoy-upstream-service-time", _digits),
            )
        },
        ("*",),
    ),
    Difference(
        "asked replicas",
        "Answers to questions have `x-tidegate-replicas`, over gRPC as trailing metadata.",
        "They show how many replicas an answer is made of, and what became of the others.",
        {"header x-tidegate-replicas": ..., "trailing x-tidegate-replicas": ...},
        ("*",),
    ),
    Difference(
        "liveness",
        "`/v2/health/live` is 200 without a content type, also for `HEAD` (Triton: 405).",
        "Envoy answers it: the gateway lives, whatever its replicas do.",
        {
            "status": 200,
            "header content-type": None,
            "header content-length": None,
            "header transfer-encoding": "chunked",
        },
        ("http: server is live", "http: HEAD of liveness"),
    ),
    Difference(
        "HTTP/1.0",
        "An answer has `connection: close` and no `transfer-encoding`.",
        "Chunks are not part of HTTP/1.0, though Triton sends them.",
        {"header transfer-encoding": None, "header connection": "close"},
        ("HTTP/1.0: metadata", "HTTP/1.0: infer", "HTTP/1.0: generate", "HTTP/1.0: stream"),
    ),
    Difference(
        "HTTP/2",
        "Calls over cleartext HTTP/2 are answered too, without `transfer-encoding`.",
        "HTTP and gRPC share the listener; Triton's HTTP port knows HTTP/1 only.",
        {"version": "HTTP/2", "header transfer-encoding": None},
        ("h2c: *",),
    ),
    Difference(
        "normalised paths",
        "Escaped letters and slashes, double slashes and dots are resolved; Triton says 404.",
        "Whatever the spelling, the list of allowed paths applies to what the replica gets.",
        {
            "status": 200,
            "body": lambda value: "name" in value or "outputs" in value,
            "header content-length": _digits,
            "header content-type": "application/json",
        },
        (
            "spelling: two slashes*",
            "spelling: escaped letter*",
            "spelling: escaped dash",
            "spelling: escaped slash",
            "spelling: dots",
            "spelling: one dot",
        ),
        {"status": 404},
    ),
    Difference(
        "invalid paths",
        "A path with `#` or `%00` is 400 (Triton: 404).",
        "It is not valid HTTP; Envoy does not interpret it.",
        _refusal("bad-request", 400, "INVALID_ARGUMENT"),
        ("spelling: fragment", "spelling: zero byte"),
        {"status": 404},
    ),
    Difference(
        "unknown paths",
        "404 has other words, over gRPC UNIMPLEMENTED has some; both have `x-tidegate-reason`.",
        "Envoy answers what is not on the list of allowed paths, in the caller's dialect.",
        _UNKNOWN_PATH,
        (
            "http: unknown path",
            "http: root",
            "http: metrics",
            "http: unknown verb of a model",
            "http: version that is no number",
            "mistake: version that is no number",
            "spelling: slash behind *",
            "spelling: capitals",
            "gRPC: unknown method",
            "gRPC: unknown service",
            "openai*: embeddings",
            "openai*: responses",
            "openai raw: unknown path",
            "openai raw: slash behind chat",
        ),
        {"status": 404, "code": "UNIMPLEMENTED"},
    ),
    Difference(
        "other paths of an engine",
        "404, where the engine has more paths than the pool's `match.paths`.",
        "The list of allowed paths is closed.",
        _UNKNOWN_PATH,
        ("openai raw: a path of the engine",),
        {"status": 200},
    ),
    Difference(
        "other methods",
        "A method that a path does not have is 404 (Triton: 405, or no answer to `OPTIONS *`).",
        "Envoy's routes match paths with their methods.",
        _UNKNOWN_PATH,
        (
            "http: HEAD of an inference",
            "http: OPTIONS of *",
            "http: preflight of a browser",
            "http: GET of *",
            "http: PUT of an inference",
            "http: DELETE of a model",
            "http: PATCH of a model",
            "http: POST of *",
        ),
        {"status": lambda value: value in {405, None}},
    ),
    Difference(
        "unknown models",
        "An inference of a model or version that is not there has Triton's status and words, and"
        " `x-tidegate-reason`; over HTTP always `content-type: application/json`.",
        "Envoy or the picker answers it; no replica is asked.",
        _marked("unknown-model", "unknown-version", "bad-request"),
        (
            "mistake: unknown model",
            "mistake: unknown version",
            "mistake: generate of an unknown *",
            "gRPC infer: unknown model",
            "gRPC infer: unknown version",
            "gRPC infer: version that is no number",
            "odd model: *",
        ),
    ),
    Difference(
        "unknown models of engines",
        "OpenAI's calls for a model that no pool serves are 404 with other words.",
        "The picker knows the models of all pools; no engine is asked.",
        _refusal("unknown-model", 404, "NOT_FOUND"),
        ("openai: unknown model", "openai async: unknown model"),
    ),
    Difference(
        "changes of replicas",
        "Loads, unloads, trace and log settings are 403 or PERMISSION_DENIED.",
        "They are for operators, who have [a port of their own](gateway.md#changes-of-replicas).",
        _refusal("one-replica", 403, "PERMISSION_DENIED", {"error": _ADMIN}, _ADMIN),
        _CHANGES,
    ),
    Difference(
        "shared memory",
        "Calls about shared memory are 403 or PERMISSION_DENIED.",
        "It is that of one host and replica.",
        _refusal("one-replica", 403, "PERMISSION_DENIED", {"error": _MEMORY}, _MEMORY),
        _SHARED_MEMORY,
    ),
    Difference(
        "a gRPC stream without a message",
        "INVALID_ARGUMENT where gRPC serves several models (Triton: OK).",
        "Its first message [names the model](requests.md#streams).",
        _refusal("bad-request", 400, "INVALID_ARGUMENT"),
        ("gRPC stream: nothing",),
        {"code": "OK"},
    ),
    Difference(
        "streams about the server",
        "`Health/Watch` and gRPC reflection are answered (Triton: UNIMPLEMENTED).",
        "The gateway has them of its own.",
        {
            "code": lambda value: value in {"OK", None},  # a watch does not end by itself
            "details": lambda value: not value,
            "replies": lambda value: len(value) == 1,
        },
        ("gRPC: watch of health", "gRPC: reflection", "gRPC: reflection v1"),
        {"code": "UNIMPLEMENTED"},
    ),
    Difference(
        "upgrades",
        "A request that asks for WebSocket is 403 (Triton ignores the wish).",
        "No connection is turned into another protocol.",
        _refusal("not-allowed", 403, "PERMISSION_DENIED"),
        ("HTTP/1.1: WebSocket",),
    ),
    Difference(
        "unsound tensors",
        "A shape that contradicts its data is 400 or INVALID_ARGUMENT with other words (Triton:"
        " also 500).",
        "Such requests can end a replica; the picker refuses them (`routing.unsound_requests`).",
        _refusal("bad-shape", 400, "INVALID_ARGUMENT"),
        (
            "mistake: shape above the data",
            "mistake: shape below the data",
            "mistake: no data",
            "gRPC infer: shape above the data",
            "gRPC infer: shape below the data",
            "gRPC infer: huge shape",
        ),
        {"status": lambda value: value in {400, 500}, "code": "INVALID_ARGUMENT"},
    ),
    Difference(
        "deep JSON",
        "JSON of more than 1,024 levels is 400 with other words.",
        "Much deeper JSON ends a replica.",
        _refusal("too-deep", 400, "INVALID_ARGUMENT"),
        ("mistake: data 2,000 deep",),
        {"status": 400},
    ),
    Difference(
        "unreadable bodies",
        "A body that is no JSON for Triton's parser either is 400 with other words (Triton: 500).",
        "What a replica does with a body that the picker cannot read is not known.",
        _refusal("bad-request", 400, "INVALID_ARGUMENT"),
        (
            "http: generate malformed",
            "http: generate_stream malformed",
            "h2c: malformed",
            "mistake: malformed JSON",
            "mistake: text behind the JSON",
            "mistake: length below the JSON",
        ),
        {"status": 500},
    ),
    Difference(
        "unreadable calls",
        "Where only the body names the pool, one that cannot be read is refused with other words,"
        " in OpenAI's form on OpenAI's paths; the status is Triton's.",
        "The picker must read the model.",
        _refusal("bad-request", 400, "INVALID_ARGUMENT")
        | {"code": lambda value: value in {"INTERNAL", "INVALID_ARGUMENT"}},
        (
            "gRPC infer: malformed message",
            "gRPC infer: no message",
            "gRPC infer: negative shape",
            "openai raw: malformed",
            "openai raw: array",
        ),
        {"status": 400},
    ),
)
"""Each entry's calls have it; the general ones any call may have."""

WITHOUT_GATEWAY: Final[tuple[Difference, ...]] = (
    Difference(
        "calls to one replica",
        "Repository, trace, log and shared-memory calls are 403 or PERMISSION_DENIED.",
        "They read or change a single replica; Envoy would choose any.",
        _refusal("one-replica", 403, "PERMISSION_DENIED", {"error": _ONE}, _ONE),
        (*_INDEX, *_CHANGES, *_SHARED_MEMORY),
    ),
    Difference(
        "statistics of all models",
        "`/v2/models/stats` is 404. `ModelStatistics` without a name shows one replica's.",
        "The numbers of one replica are not those of all.",
        _UNKNOWN_PATH,
        ("http: statistics of all models", "tritonclient http*: get_inference_statistics of all"),
        {"status": lambda value: value in {200, None}},
    ),
    Difference(
        "questions about unknown models",
        "Their paths are answered with `x-tidegate-reason`.",
        "Envoy answers without asking a replica.",
        _marked("unknown-model"),
        ("http: * of an unknown model",),
    ),
    Difference(
        "unreadable questions",
        "A gRPC question about a model that cannot be read is refused with other words.",
        "The picker must read the model.",
        _refusal("bad-request", 400, "INVALID_ARGUMENT")
        | {"code": lambda value: value in {"INTERNAL", "INVALID_ARGUMENT"}},
        ("gRPC: malformed question",),
    ),
)
"""What a fleet without `gateway` has beside the general differences."""
