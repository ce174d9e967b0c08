"""Chats recorded from vLLM 0.32.0: their tokens are those that its ``/tokenize`` answered.

Recorded by ``tests/engines/record_chats.py`` on 2026-11-22.
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ext_proc.control.chat_sandbox import SandboxedTemplate
from ext_proc.control.tokenizer_files import load
from ext_proc.requests import Chats, Pieces, read_body, read_head, token_blocks
from ext_proc.requests.blocks import chained
from ext_proc.routing.values.request import Features, Form

FOLDER = Path(__file__).parent / "fixtures" / "vllm-0.32.0"
CASES = [json.loads(line) for line in (FOLDER / "chats.jsonl").read_text().splitlines()]
RECORDED = datetime(2026, 11, 22, tzinfo=UTC)
TOKENIZER = load(str(FOLDER / "tokenizer.json"))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def chats_of(name: str) -> Chats:
    source = (FOLDER / "templates" / name).read_text()
    template = SandboxedTemplate(source, SPECIAL, today=lambda: RECORDED)
    return Chats(template, Pieces(TOKENIZER, TOKENIZER.boundaries()))


CHATS = {name: chats_of(name) for name in {each["template"] for each in CASES}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['template']}-{case['about']}")
def test_a_chat_has_the_engines_tokens(case):
    """Tools, calls, parts, reasoning, developers, special tokens in texts, odd white space.

    All chats of a template share one cache, so most pieces come from it.
    """
    for _ in range(2):
        found = CHATS[case["template"]].ids(case["body"])
        assert found.whole
        assert list(struct.unpack(f"<{found.tokens}I", found.packed)) == case["ids"]


def test_a_body_has_the_blocks_of_the_engines_tokens():
    """From the bytes that a client sends to the blocks that KV events are compared with."""
    case = next(each for each in CASES if each["about"] == "long")
    features = read_head("POST", "/v1/chat/completions", {})
    body = json.dumps({"model": "tiny", **case["body"], "cache_salt": "t"}).encode()
    features = read_body(features, {}, body, complete=True)
    found = token_blocks(features, 256, 32, TOKENIZER, 7, CHATS[case["template"]])
    same = Features(Form.OPENAI, model="tiny", salt="t")
    packed = struct.pack(f"<{len(case['ids'])}I", *case["ids"])
    assert (found.tokens, found.block_tokens) == (len(case["ids"]), 32.0)
    assert found.hashes == chained(same, packed, 128, seed=7)
    assert features.chat is None, "the body would be kept as long as the request"
