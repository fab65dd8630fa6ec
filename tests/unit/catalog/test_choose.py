from __future__ import annotations

import pytest

from forebay.catalog import choose
from forebay.catalog.settings import SMOLLM2, ModelSettings
from forebay.core.errors import ModelNotFound, NotAllowed
from forebay.core.job import Lane
from forebay.core.principal import Principal, Scopes

TINY = ModelSettings(id="tiny-chat", aliases=("tiny",), engine="scripted")
SECRET = ModelSettings(id="tiny-secret", aliases=("classified",), engine="scripted")
NAMES = choose.index([SMOLLM2, TINY, SECRET])


def principal(**changes: object) -> Principal:
    values = {"models": None, "lanes": frozenset(Lane)} | changes
    return Principal(scopes=Scopes("org_1", "proj_1", "key_1"), weight=1, **values)


def refused(name: str, who: Principal) -> str:
    with pytest.raises(ModelNotFound) as caught:
        choose.resolve(NAMES, who, name)
    assert caught.value.param == "model"
    return caught.value.message


@pytest.mark.parametrize("name", ["smollm2-135m-instruct", "small", "default"])
def test_a_model_is_found_by_its_id_and_by_each_alias(name: str) -> None:
    assert choose.resolve(NAMES, principal(), name) is SMOLLM2


def test_an_unknown_model_names_what_was_asked_and_the_nearest() -> None:
    message = refused("smollm2-135m-instrukt", principal())
    assert "'smollm2-135m-instrukt'" in message
    assert "Did you mean 'smollm2-135m-instruct'?" in message


def test_at_most_three_near_models_are_named() -> None:
    assert refused("tiny-", principal()).count("'tiny") <= 4  # three, and what was asked


def test_when_none_is_near_some_that_the_key_may_use_are_named() -> None:
    message = refused("gpt-99-ultra", principal())
    assert "Models this key may use: 'smollm2-135m-instruct'" in message


def test_a_model_that_the_key_may_not_use_looks_like_an_unknown_one() -> None:
    who = principal(models=frozenset({"tiny-chat"}))
    denied, unknown = refused("tiny-secret", who), refused("tiny-secreX", who)
    assert denied.replace("tiny-secret", "?") == unknown.replace("tiny-secreX", "?")
    for message in (denied, unknown, refused("classified", who), refused("small", who)):
        for hidden in ("'classified'?", "smollm2", "Did you mean 'tiny-secret'"):
            assert hidden not in message


def test_an_allow_list_may_hold_ids_or_aliases() -> None:
    for listed in ("tiny", "tiny-chat"):
        assert choose.resolve(NAMES, principal(models=frozenset({listed})), "tiny-chat") is TINY


def test_a_key_without_models_is_told_so() -> None:
    assert "may use no model" in refused("tiny", principal(models=frozenset()))


def test_a_very_long_name_is_cut() -> None:
    message = refused("small" * 1_000_000, principal())
    assert len(message) < 300


def test_two_models_may_not_share_a_name() -> None:
    twin = ModelSettings(id="other", aliases=("tiny",), engine="scripted")
    with pytest.raises(ValueError, match="'tiny' names both tiny-chat and other"):
        choose.index([TINY, twin])


def test_a_lane_outside_the_permission_is_refused_with_its_code() -> None:
    who = principal(lanes=frozenset({Lane.BATCH, Lane.INTERACTIVE}))
    choose.require_lane(who, Lane.INTERACTIVE)
    with pytest.raises(NotAllowed) as caught:
        choose.require_lane(who, Lane.PREMIUM)
    assert (caught.value.code, caught.value.param) == ("lane_not_allowed", "service_tier")
    assert "interactive, batch" in caught.value.message


@pytest.mark.parametrize(
    ("asked", "key_cap", "bound"),
    [
        (None, None, (512, False)),
        (None, 100, (100, False)),
        (None, 100_000, (512, False)),
        (1, None, (1, True)),
        (700, None, (700, True)),
        (700, 600, (600, True)),
        (1_000_000, None, (2048, True)),
        (1_000_000, 3000, (2048, True)),
    ],
)
def test_the_output_bound_is_the_smallest_of_wish_key_cap_and_model_cap(
    asked: int | None, key_cap: int | None, bound: tuple[int, bool]
) -> None:
    who = principal(max_output_tokens=key_cap)
    assert choose.output_bound(SMOLLM2, who, asked) == bound
