from __future__ import annotations

import pytest

from forebay.core.errors import ForebayError, InvalidRequest, UnsupportedParameter
from forebay.gateway.completion_fields import COMPLETION_FIELDS
from forebay.gateway.completion_request import parse_completion
from forebay.gateway.fields import Kind


def parse(**fields):
    return parse_completion({"model": "m", "prompt": "Once", **fields})


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("Once", "Once"),
        (["Once"], "Once"),
        ([1, 2, 3], (1, 2, 3)),
        ([[1, 2, 3]], (1, 2, 3)),
        ([0], (0,)),
    ],
)
def test_rule_46_a_prompt_is_text_or_ids_bare_or_in_a_list_of_one(prompt, read):
    assert parse(prompt=prompt).prompt == read


def test_a_minimal_request_has_openais_default_maximum():
    request = parse()
    assert (request.max_output_tokens, request.messages, request.choices) == (16, (), 1)
    assert parse(max_tokens=3).max_output_tokens == 3


def test_rule_42_logprobs_is_a_count_and_0_is_the_chosen_token_alone():
    assert parse(logprobs=0).sampling.logprobs
    assert not parse().sampling.logprobs
    assert not parse(logprobs=False).sampling.logprobs
    with pytest.raises(InvalidRequest) as caught:
        parse(logprobs=2)
    assert (caught.value.param, caught.value.code) == ("logprobs", "unsupported_value")


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"prompt": None}, "prompt", "missing_required_parameter"),
        ({"prompt": ""}, "prompt", "string_below_min_length"),
        ({"prompt": []}, "prompt", "empty_array"),
        ({"prompt": [""]}, "prompt[0]", "string_below_min_length"),
        ({"prompt": [[]]}, "prompt[0]", "empty_array"),
        ({"prompt": ["a", "b"]}, "prompt", "unsupported_value"),
        ({"prompt": [[1], [2]]}, "prompt", "unsupported_value"),
        ({"prompt": [1, "a"]}, "prompt", "unsupported_value"),
        ({"prompt": {"a": 1}}, "prompt", "invalid_type"),
        ({"prompt": [None]}, "prompt[0]", "invalid_type"),
        ({"prompt": [True]}, "prompt[0]", "invalid_type"),
        ({"prompt": [[1, "a"]]}, "prompt[0][1]", "invalid_type"),
        ({"prompt": [[1, True]]}, "prompt[0][1]", "invalid_type"),
        ({"prompt": [1, -1]}, "prompt[1]", "integer_below_min_value"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"logprobs": -1}, "logprobs", "integer_below_min_value"),
        ({"logprobs": True}, "logprobs", "invalid_type"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path_and_code(fields, param, code):
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert param in caught.value.message


@pytest.mark.parametrize("fields", [{"echo": True}, {"suffix": "x"}, {"best_of": 3}])
def test_what_is_not_built_is_refused(fields):
    with pytest.raises(UnsupportedParameter):
        parse(**fields)
    assert parse(echo=False, suffix=None, best_of=1).prompt == "Once"


def test_rule_37_an_explicit_null_is_absent_for_every_optional_field():
    nulls = {name: None for name in COMPLETION_FIELDS if name not in ("model", "prompt")}
    assert parse(**nulls) == parse()


def test_every_supported_field_is_checked():
    for field in COMPLETION_FIELDS.values():
        if field.kind is Kind.SUPPORTED and field.name != "stream_options":
            with pytest.raises(ForebayError) as caught:
                parse(**{field.name: {"wrong": "type"}})
            assert caught.value.param == field.name
