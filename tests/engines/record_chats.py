"""Records a vLLM engine's tokens of chats under several templates; run by its own Python.

    python record_chats.py HTTP_PORT MODEL_FOLDER FOLDER

The engine serves the model of ``make_model.py`` (``serve_vllm.py`` trusts templates in requests).
FOLDER has ``templates/*.jinja``, with what those of Llama 3 and Qwen 3 do. Writes ``chats.jsonl``,
each line a chat, its template and the ids of ``/tokenize``; copies the model's ``tokenizer.json``.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path

CHATS: dict[str, dict[str, object]] = {
    "one": {"messages": [{"role": "user", "content": "ba de fi golu"}]},
    "turns": {
        "messages": [
            {"role": "system", "content": "mane po"},
            {"role": "user", "content": "ba de "},
            {"role": "assistant", "content": " fi\n"},
            {"role": "user", "content": "golu\n\n"},
        ]
    },
    "tools": {
        "messages": [
            {"role": "user", "content": "ba de"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "type": "function",
                        "id": "c1",
                        "function": {"name": "weigh", "arguments": '{"x": 1.50, "s": "é"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "12"},
            {"role": "user", "content": "risu"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weigh",
                    "description": 'Ä "q" <b>',
                    "parameters": {
                        "type": "object",
                        "properties": {"x": {"type": "number", "default": 1.0}},
                    },
                },
            },
            {
                "function": {
                    "parameters": {"b": 1, "a": [1, 2]},
                    "name": "z",
                    "strict": True,
                    "extra": 1,
                }
            },
        ],
    },
    "parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "tavo"}]},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "ba"},
                    {"type": "text", "text": ""},
                    {"type": "text", "text": "de", "cache_control": {"type": "ephemeral"}},
                ],
            },
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            {"role": "user", "content": [{"type": "text", "text": "su"}]},
        ]
    },
    "toolparts": {
        "messages": [
            {"role": "user", "content": "a"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "type": "function",
                        "id": "c1",
                        "function": {"name": "weigh", "arguments": '{"x": 1.50, "s": "é"}'},
                    },
                    {"id": "d", "type": "function", "function": {"name": "q", "arguments": ""}},
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}],
            },
        ]
    },
    "developer": {
        "messages": [
            {"role": "system", "content": "ba"},
            {"role": "developer", "content": "de"},
            {"role": "user", "content": "fi"},
        ]
    },
    "nogen": {
        "messages": [{"role": "user", "content": "ba"}, {"role": "assistant", "content": "de"}],
        "add_generation_prompt": False,
    },
    "name": {
        "messages": [
            {"role": "user", "content": "ba", "name": "tide"},
            {"role": "assistant", "content": "de", "reasoning": "fi golu"},
            {"role": "user", "content": "x"},
        ]
    },
    "special": {
        "messages": [{"role": "user", "content": "ba <|im_end|> de <s></s> <|im_start|>system\nfi"}]
    },
    "unicode": {
        "messages": [
            {"role": "user", "content": "潮汐 ä ö 🌊 \t\r\n  ba"},
            {"role": "assistant", "content": "  \n"},
            {"role": "user", "content": "\n"},
        ]
    },
    "kwargs": {
        "messages": [{"role": "user", "content": "ba"}],
        "chat_template_kwargs": {"enable_thinking": False, "mood": "fi"},
    },
    "empty": {"messages": [{"role": "user", "content": ""}]},
    "billing": {
        "messages": [
            {"role": "system", "content": "x-anthropic-billing-header: cch=1\nba de"},
            {"role": "user", "content": "x"},
        ]
    },
}
"""Bodies of chat completions, by what they are about."""


def ids_of(port: str, body: dict[str, object]) -> list[int]:
    """Return the engine's tokens of a chat."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/tokenize",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 - loopback
        tokens: list[int] = json.load(answer)["tokens"]
    return tokens


def main() -> None:
    """Ask about each chat under each template, and write the answers."""
    port, model, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    long = [
        {"role": role, "content": "ba de fi golu mane po " * turn}
        for turn in range(12)
        for role in ("user", "assistant")
    ]
    chats = {**CHATS, "long": {"messages": [*long, {"role": "user", "content": "risu"}]}}
    lines = []
    for file in sorted((folder / "templates").glob("*.jinja")):
        for about, body in chats.items():
            asked = {"model": "tiny", **body, "chat_template": file.read_text()}
            found = {
                "template": file.name,
                "about": about,
                "body": body,
                "ids": ids_of(port, asked),
            }
            lines.append(json.dumps(found, separators=(",", ":")))
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n")
    shutil.copy(model / "tokenizer.json", folder)


if __name__ == "__main__":
    main()
