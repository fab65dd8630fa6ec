from __future__ import annotations

import dataclasses

import pytest

from forebay.tokens.settings import TokensSettings


def test_every_setting_has_a_sentence_of_help() -> None:
    for field in dataclasses.fields(TokensSettings):
        assert field.metadata["help"].endswith(".")


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TokensSettings)])
def test_a_negative_bound_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        TokensSettings(**{name: -1})
