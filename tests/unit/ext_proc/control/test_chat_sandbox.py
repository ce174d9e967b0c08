"""Chat templates in their sandbox: what they see, and what they cost."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest
from jinja2.exceptions import TemplateError

from ext_proc.control.chat_sandbox import MAX_CHARS, MAX_SOURCE_CHARS, SandboxedTemplate

MESSAGES = {"messages": [{"role": "user", "content": "tide"}, {"role": "x", "content": "ebb"}]}


def rendered(source, **more):
    return SandboxedTemplate(source, {"bos_token": "<s>"}).render({**MESSAGES, **more})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{% for m in messages %}{{ m.content }},{% endfor %}", "<s>tide,ebb,"),
        ("{% for m in messages %}{{ loop.index0 }}{{ loop.last }}{% endfor %}", "0False1True"),
        ("{% for m in messages[::-1] if m.role == 'x' %}{{ m['content'] }}{% endfor %}", "ebb"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}a{% endfor %}", "a"),
        ("{% for k, v in {'a': messages[0].role}.items() %}{{ k ~ v }}{% endfor %}", "auser"),
        ("{% set n = namespace(x=0) %}{% for m in messages %}{% set n.x = 5 %}{% endfor %}{{ n.x }}", "5"),  # noqa: E501
        ("{% macro f(x) %}<{{ x | upper }}>{% endmacro %}{{ f('a') }}", "<A>"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{{ messages | map(attribute='role') | join('+') }}", "user+x"),
        ("{{ messages | selectattr('role', 'equalto', 'x') | list | length }}", "1"),
        ("{{ {'ä': [1, '<'], 'b': none} | tojson }}", '{"ä": [1, "<"], "b": null}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ 'a,b'.split(',')[1].strip().replace('b', 'cc') }}", "cc"),
        ("{{ '-'.join(['a', 'b']) }}{{ [1] + [2] }}{{ 'ab' * 2 }}{{ 7 % 4 }}", "a-b[1, 2]abab3"),
        ("{{ missing }}{{ missing is defined }}{{ missing | default('d') }}", "Falsed"),
        ("{{ (messages[0].content, 'x')[0] }}", "tide"),
        ("  {% if true %}\n  a\n  {% endif %}\n", "  a\n"),
        ("{{ strftime_now('%d %b %Y') }}", "02 Jan 2026"),
    ],
)  # fmt: skip
def test_templates_write_what_transformers_would(source, text):
    """The sandbox changes costs, not texts."""
    template = SandboxedTemplate(
        source, {"bos_token": "<s>"}, today=lambda: datetime(2026, 1, 2, tzinfo=UTC)
    )
    assert template.render(MESSAGES) == text


HOSTILE = {
    "loops in loops": "{% for i in range(99999) %}{% for j in range(99999) %}"
    "{% endfor %}{% endfor %}",
    "a long text": "{{ 'a' * 1000000000 }}",
    "a long list": "{{ ([messages] * 1000000000) | length }}",
    "doubling lists": "{% set n = namespace(x=['a']) %}{% for i in range(60) %}"
    "{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "doubling objects": "{% set n = namespace(x={}) %}{% for i in range(60) %}"
    "{% set n.x = {'a': n.x, 'b': n.x} %}{% endfor %}{{ n.x | tojson }}",
    "doubling by dict": "{% set n = namespace(x=1) %}{% for i in range(60) %}"
    "{% set n.x = dict(a=n.x, b=n.x) %}{% endfor %}{{ n.x | string }}",
    "doubling texts": "{% set n = namespace(x='abcd') %}{% for i in range(60) %}"
    "{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "adding texts": "{% set n = namespace(x='abcd') %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}{{ n.x }}",
    "namespaces in lists": "{% set a = namespace(x=1) %}{{ [a, a] }}",
    "squaring": "{% set n = namespace(x=9) %}{% for i in range(60) %}"
    "{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "powers": "{{ 9 ** 9 ** 9 }}",
    "calls in calls": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}"
    "{% endmacro %}"
    "{{ f(60) }}",
    "endless calls": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loops": "{% for a in messages recursive %}{{ loop([a, a]) }}{% endfor %}",
    "an inner text": "{% set b = 'x' * 100000 %}{% set y %}{% for i in range(90000) %}{{ b }}"
    "{% endfor %}{% endset %}{{ y | length }}",
    "its own text": "{% set x %}{% for i in range(99999) %}"
    + "y" * 20_000
    + "{% endfor %}{% endset %}",
    "a macro's text": "{% macro f() %}" + "y" * 20_000 + "{% endmacro %}{% for i in range(99999) %}"
    "{% set x = f() %}{% endfor %}{% set z %}{% for i in range(99999) %}{{ f() }}"
    "{% endfor %}{% endset %}",
    "padding": "{{ 'a'.ljust(1000000000) }}",
    "formatting": "{{ '%1000000000d' % 1 }}",
    "format": "{{ '{:1000000000}'.format(1) }}",
    "replacing": "{{ ('a' * 9999).replace('', 'b' * 99999) }}",
    "the filter replace": "{{ ('a' * 9999) | replace('a', 'b' * 99999) }}",
    "joining": "{{ (range(99999) | map('string') | list) | join('b' * 99999) }}",
    "the method join": "{{ ('b' * 99999).join(messages * 9999) }}",
    "indentation": "{{ messages | tojson(indent=1000000000) }}",
    "the filter indent": "{{ 'a\n' * 999 | indent(1000000000) }}",
    "separators": "{{ messages | tojson(separators=['b' * 9999, ':']) }}",
    "filters over and over": "{% for i in range(90000) %}{{ range(90000) | list | length }}"
    "{% endfor %}",
    "filters of generators": "{{ range(99999) | map('string') | map('upper') | join }}",
    "bytes of numbers": "{{ (1).to_bytes(1000000000) }}",
}


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_template_is_ended(source):
    """With no text; to its own end each would take minutes or all memory."""
    assert SandboxedTemplate(source, {}).render(MESSAGES) is None


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ range.__self__ }}",
        "{% set x = messages.append(1) %}",
        "{{ raise_exception('refused') }}",
        "{{ 1 / 0 }}",
        "{% include 'file' %}",
    ],
)
def test_what_a_template_must_not_do_leaves_no_text(source):
    """Neither the machine nor the request is its own."""
    messages = [dict(each) for each in MESSAGES["messages"]]
    found = SandboxedTemplate(source, {}).render({"messages": messages})
    assert not found
    assert messages == MESSAGES["messages"]


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ 'a' | center(9) }}",
        "{{ x | random }}",
        "x" * (MAX_SOURCE_CHARS + 1),
    ],
)
def test_what_is_no_template_is_not_loaded(source):
    """It is said when the file is read, not at each chat."""
    with pytest.raises(TemplateError):
        SandboxedTemplate(source, {})


def test_a_slow_template_ends_by_the_clock():
    """Steps differ in what they cost."""
    ticks = itertools.count()
    template = SandboxedTemplate(
        "{% for i in range(99) %}{% endfor %}a", {}, clock=lambda: next(ticks) / 100
    )
    assert template.render(MESSAGES) is None


def test_a_chat_may_be_long_but_not_longer_than_the_bound():
    """A text that is written is held in memory."""
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    half = {"role": "user", "content": "x" * (MAX_CHARS // 2)}
    template = SandboxedTemplate(source, {})
    assert len(template.render({"messages": [half, half]})) == MAX_CHARS
    assert template.render({"messages": [half, half, {"content": "y"}]}) is None


def test_a_deeply_nested_value_ends_its_chat_only():
    """Clients choose how tools nest."""
    deep: object = "x"
    for _ in range(5000):
        deep = [deep]
    assert rendered("{{ tools | tojson }}", tools=deep) is None
    assert rendered("{{ messages | length }}") == "2"


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m['content'] | list %}{% endfor %}{% endfor %}", True),
        ("{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{{ f(messages[0]) }}", False),
        ("{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{{ f(m.content) }}", True),
        ("{% macro f(x) %}{% for c in x %}{% endfor %}{% endmacro %}{{ f(x=m.content) }}", True),
        ("{% set content = m.content %}{% for c in content %}{% endfor %}", True),
    ],
)
def test_templates_that_read_parts_are_told_apart(source, parts):
    """Engines give them contents as lists, and others as texts."""
    assert SandboxedTemplate(source, {}).parts is parts
