"""Blocks of chats, and when they are believed."""

from __future__ import annotations

import pytest

from ext_proc.requests import Chats, Pieces, Sample
from ext_proc.requests.blocks import Blocks, chained
from ext_proc.requests.chats import MAX_SAMPLE_TOKENS, WINDOW
from ext_proc.requests.conversations import MEDIA
from ext_proc.routing.values.request import Features, Form, Truncation

IMAGE = [{"type": "image_url", "image_url": {}}]


class Letters:
    """Each character is a token."""

    def encode(self, text, *, special=True):  # noqa: ARG002 - an interface
        return [ord(each) for each in text]


class Template:
    """Writes all contents."""

    parts = developers = False

    def render(self, variables):
        contents = [each["content"] for each in variables["messages"]]
        return None if "fail" in contents else "".join(contents)


def chat(*contents, **more):
    members = {"messages": [{"role": "user", "content": each} for each in contents], **more}
    return Features(Form.OPENAI, model="m", chat=members)


def blocks_of(text):
    packed = b"".join(ord(each).to_bytes(4, "little") for each in text)
    return chained(Features(Form.OPENAI, model="m"), packed, 16, seed=3)


@pytest.fixture
def chats():
    return Chats(Template(), Pieces(Letters()))


def answered(chats, *verdicts):
    """Let engines agree or differ."""
    ids = chats.ids({"messages": [{"role": "user", "content": "ab"}]})
    for same in verdicts:
        chats.note(ids, [97, 98] if same else [97, 99])


def test_a_chat_has_the_blocks_of_its_tokens(chats):
    """Its model, adapter and salt separate it as they do ids."""
    found = chats.blocks(chat("abcd", "efghi"), 4, 3)
    assert found == Blocks(blocks_of("abcdefgh"), 4.0, 9, chat=True)


def test_before_media_the_tokens_are_known(chats):
    """The beginning has the blocks that it has without what follows."""
    found = chats.blocks(chat("abcd efgh " * 20, IMAGE, "after"), 4, 3)
    assert 0 < len(found.hashes) < 50
    assert found.hashes == blocks_of("abcd efgh " * 20)[: len(found.hashes)]


def test_a_text_that_looks_like_media_only_ends_what_is_known(chats):
    """A client may write the mark."""
    assert chats.blocks(chat("abcd" + MEDIA + "efgh"), 4, 3) is not None


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        (Truncation(5, left=True, whole=True), "efghi"),
        (Truncation(5, left=False, whole=True), "abcde"),
        (Truncation(50, left=True, whole=False), "abcdefghi"),
    ],
)
def test_truncated_chats_have_the_blocks_of_what_is_kept(chats, truncation, kept):
    """An engine caches nothing else."""
    features = chat("abcdefghi")
    features.truncation = truncation
    assert chats.blocks(features, 4, 3) == Blocks(blocks_of(kept), 4.0, len(kept), chat=True)


@pytest.mark.parametrize("features", [chat("fail"), chat("a", continue_final_message=True)])
def test_what_cannot_be_rendered_is_predicted_by_its_text(chats, features):
    """And counted as such."""
    assert chats.blocks(features, 4, 3) is None
    assert chats.describe()["chats"] == {"exact": 0, "approximate": 1}


def test_a_template_is_believed_until_an_engine_differs(chats):
    """Some engines cannot be asked."""
    assert chats.trusted is None
    assert chats.blocks(chat("abcd"), 4, 3) is not None
    answered(chats, False)
    assert chats.trusted is False
    assert chats.blocks(chat("abcd"), 4, 3) is None
    assert chats.describe()["template"] == "differs"


def test_a_few_unusual_chats_do_not_end_the_others_exactness(chats):
    """A client could send them."""
    answered(chats, True, True, True, False)
    assert chats.trusted
    answered(chats, False)
    assert chats.trusted is False


def test_a_template_is_believed_again_when_engines_agree(chats):
    """Only the last answers count, of which a bounded number is kept."""
    answered(chats, *[False] * 40)
    answered(chats, *[True] * (WINDOW - 4))
    assert chats.trusted
    assert chats.describe()["checks"] == {"agreed": WINDOW - 4, "differed": 40}


def test_one_chat_is_kept_to_ask_about_where_one_is_wanted(chats):
    """Also while the template is not believed, or it could never be again."""
    answered(chats, False)
    chats.blocks(chat("abcd"), 4, 3)
    assert chats.take_sample() is None
    chats.want_sample()
    kept = chat("abcd")
    chats.blocks(kept, 4, 3)
    chats.blocks(chat("other"), 4, 3)
    assert chats.take_sample() == Sample(kept.chat, chats.ids(kept.chat))
    assert chats.take_sample() is None


@pytest.mark.parametrize(
    "features", [chat("a" * (MAX_SAMPLE_TOKENS + 1)), chat("abcd efgh " * 20, IMAGE)]
)
def test_long_chats_and_media_are_not_kept(chats, features):
    """Asking costs the engine what they are long, and it would fetch media again."""
    chats.want_sample()
    assert chats.blocks(features, 4, 3) is not None
    assert chats.take_sample() is None


def test_of_a_chat_with_media_the_beginning_is_compared(chats):
    """The engine's ids go on."""
    ids = chats.ids(chat("abcd efgh " * 20, IMAGE).chat)
    engines = [ord(each) for each in "abcd efgh " * 20]
    assert chats.note(ids, [*engines, 5, 5])
    assert not chats.note(ids, engines[1:])
    assert not chats.note(ids, [-1])
