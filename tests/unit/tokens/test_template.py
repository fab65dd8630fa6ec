from __future__ import annotations

import pytest

from forebay.core.call import Message
from forebay.core.errors import InvalidRequest
from forebay.testing.clock import CountingIds
from forebay.tokens.program import UnsupportedModel
from forebay.tokens.template import ChatTemplate, Segment, shape

CONTROL = {"<|im_start|>": 1, "<|im_end|>": 2, "<|bos|>": 3, "<|im|>": 4}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LOOP = "{%% for m in messages %%}<|im_start|>%s<|im_end|>{%% endfor %%}<|im_start|>"


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, control=CONTROL, names={"bos_token": "<|bos|>"}, ids=CountingIds())


def filled(made: ChatTemplate, *messages: tuple[str, str]) -> list[int | str]:
    said = [Message(role, text) for role, text in messages]
    contents = [text for _, text in messages]
    items = made.skeleton(said)
    return [item.text(contents) if isinstance(item, Segment) else item for item in items]


def test_between_two_control_tokens_template_text_and_content_are_one_piece() -> None:
    """K1: so the tokenizer may merge across their border, as it does on the whole prompt."""
    assert filled(template(CHATML), ("system", "\n\nBe brief"), ("user", "hi")) == [
        *(1, "system\n\n\nBe brief", 2, "\n"),
        *(1, "user\nhi", 2, "\n"),
        *(1, "assistant\n"),
    ]


@pytest.mark.parametrize("text", ["<|im_end|>", "<|im_start|>system\n", "end|>", "<|im", "x1x0;"])
def test_content_is_never_searched_for_control_tokens_also_when_the_template_completes_one(
    text: str,
) -> None:
    """K2: `<|im` and `|>` around a content must not become one token."""
    made = template(LOOP % "<|im{{ m.content }}|>")
    assert filled(made, ("user", text)) == [1, f"<|im{text}|>", 2, 1]


def test_control_tokens_of_the_template_are_found_longest_first() -> None:
    made = ChatTemplate(
        "{{ bos_token }}" + LOOP % "{{ m.content }}",
        control={**CONTROL, "<|im_start|><|im_start|>": 9},
        names={"bos_token": "<|im_start|>"},
        ids=CountingIds(),
    )
    assert filled(made, ("user", "a")) == [9, "a", 2, 1]


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("{{ m.content }}", "  a b \n"),
        ("{{ m['content'] | trim }}", "a b"),
        ("{{ m.content.strip() }}", "a b"),
        ("{{ m.content.lstrip() }}", "a b \n"),
        ("{{ m.content.rstrip() | trim }}", "a b"),
        ("{{ 'x' ~ m.content ~ 'y' }}", "x  a b \ny"),
        ("{% set c = m.content %}{{ c }}", "  a b \n"),
        ("{% if m.content %}{{ m.content }}{% endif %}", "  a b \n"),
        (
            "{% if m.content is defined and m.content is string %}{{ m.content }}{% endif %}",
            "  a b \n",
        ),
        (
            "{% if m.content != '' and m.content is not none %}{{ m.content }}{% endif %}",
            "  a b \n",
        ),
        ("{{ m.content.lstrip().rstrip() }}", "a b"),
    ],
)
def test_templates_may_print_strip_and_test_a_content(expression: str, shown: str) -> None:
    """K1."""
    assert filled(template(LOOP % expression), ("user", "  a b \n")) == [1, shown, 2, 1]


@pytest.mark.parametrize(
    "expression",
    [
        "{{ m.content | upper }}",
        "{{ m.content | replace('a', 'b') }}",
        "{{ m.content[:10] }}",
        "{{ m.content[0] }}",
        "{{ m.content.split('</think>')[-1] }}",
        "{% if 'x' in m.content %}x{% endif %}{{ m.content }}",
        "{% if m.content == 'plain' %}x{% endif %}{{ m.content }}",
        "{% if m.content | length > 5 %}x{% endif %}{{ m.content }}",
        "{% if m.content.startswith('a') %}x{% endif %}{{ m.content }}",
        "{% for c in m.content %}{{ c }}{% endfor %}",
        "{{ m.content | tojson }}",
        "{{ m | tojson }}",
        "{{ m.content | e }}",
        "{{ m.content | urlencode }}",
        "{{ m.content.strip('x') }}",
        "{{ (m.content + 'x') | trim }}",
        "{{ ('x' ~ m.content) | trim }}",
        "{{ m.content | wordcount }}{{ m.content }}",
        "{{ m.content * 2 }}",
        "{{ '%s' % m.content }}",
        "{{ m.content | truncate(20) }}",
        "{{ '%10s' % m.content }}",
    ],
)
def test_templates_that_look_into_or_change_a_content_are_refused_at_load(expression: str) -> None:
    """K1, K2: never silently wrong."""
    with pytest.raises(UnsupportedModel, match="template cannot be used safely"):
        template(LOOP % expression)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for m in messages %}[INST] {{ m.content }} [/INST]{% endfor %}", "fenced"),
        ("<|bos|>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", "fenced"),
        ("{{ messages[0].content }}<|im_end|>", "fenced"),
        ("<|im_start|>{{ messages[-1].content }}<|im_end|>", "leaves messages out"),
        ("{{ strftime_now('%d') }}" + CHATML, "strftime_now"),
        ("{{ raise_exception('no') }}", "refuses these messages: no"),
        ("{% for m in messages %}", "cannot be compiled"),
        ("{% include 'x' %}", "."),
        ("{{ messages.append(1) }}" + CHATML, "."),
        ("{{ ''.__class__.__mro__ }}" + CHATML, "."),
        ("{{ 1 / 0 }}", "ZeroDivision"),
        ("{{ messages[99].content }}", "."),
    ],
)
def test_unsafe_and_broken_templates_are_refused_with_the_reason(source: str, why: str) -> None:
    with pytest.raises(UnsupportedModel, match=why):
        template(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% for i in range(999999) %}{% endfor %}",
        "{{ 'x' * 100000000 }}",
        "{% for i in range(90000) %}0123456789abcdef{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
    ],
)
def test_a_template_that_runs_or_prints_without_end_is_stopped(source: str) -> None:
    """K3."""
    with pytest.raises(UnsupportedModel):
        template(source + CHATML)


def test_what_the_template_refuses_is_the_callers_error() -> None:
    made = template(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        + CHATML
    )
    assert filled(made, ("user", "a"))[0] == 1
    with pytest.raises(InvalidRequest, match="no system role") as caught:
        filled(made, ("system", "a"), ("user", "b"))
    assert caught.value.param == "messages"


def test_a_role_that_is_not_ours_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="tool"):
        filled(template(CHATML), ("user", "a"), ("tool", "b"))


def test_empty_and_blank_contents_have_shapes_of_their_own() -> None:
    made = template(
        LOOP % "{% if m.content | trim %}{{ m.content | trim }}{% else %}none{% endif %}"
    )
    assert filled(made, ("user", "")) == [1, "none", 2, 1]
    assert filled(made, ("user", " \n ")) == [1, "none", 2, 1]
    assert filled(made, ("user", " a ")) == [1, "a", 2, 1]


def test_a_shape_is_rendered_once() -> None:
    made = template(CHATML)
    first = [Message("system", "a"), Message("user", "b")]
    again = [Message("system", "other"), Message("user", "text")]
    assert not made.knows(first)
    assert made.skeleton(first) is made.skeleton(again)
    assert made.knows(again)
    assert shape(first) != shape([Message("system", ""), Message("user", "b")])


def test_loop_controls_and_block_trimming_work_as_model_authors_expect() -> None:
    made = template(
        "{% for m in messages %}\n"
        "    {% if m.role == 'system' and not loop.first %}{% continue %}{% endif %}\n"
        "<|im_start|>{{ m.content }}<|im_end|>\n"
        "{% endfor %}\n"
        "<|im_start|>"
    )
    assert filled(made, ("user", "a"), ("system", "")) == [1, "a", 2, "\n", 1]
