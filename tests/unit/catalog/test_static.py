from __future__ import annotations

import dataclasses

import pytest

from forebay.catalog.settings import SCRIPTED, SMOLLM2, LaneFactors, price_terms
from forebay.catalog.static import StaticCatalog
from forebay.core.errors import ModelNotFound, NotAllowed
from forebay.core.job import Lane, Sampling
from forebay.core.money import Price
from forebay.core.principal import Principal, Scopes

MODELS = (SMOLLM2, SCRIPTED)
PRICES = [
    Price(version, terms)
    for version, terms in enumerate(
        [t for model in MODELS for t in price_terms(model, LaneFactors())], start=11
    )
]
ANYONE = Principal(Scopes("org_1", "proj_1", "key_1"), weight=1, lanes=frozenset(Lane))


def test_a_route_says_where_the_call_goes_and_on_what_terms() -> None:
    route = StaticCatalog(MODELS, PRICES).choose(ANYONE, "small", Lane.BATCH, 99)
    price = next(p for p in PRICES if p.version == route.price_version)
    assert (price.terms.model, price.terms.lane) == ("smollm2-135m-instruct", Lane.BATCH)
    assert (route.model, route.pool, route.lane) == (SMOLLM2.id, SMOLLM2.id, Lane.BATCH)
    assert (route.ceiling_tokens, route.asked, route.context_tokens) == (99, True, 8192)
    assert route.sampling == Sampling(temperature=0.2, top_p=0.9)


def test_a_refusal_is_that_of_the_pure_choice() -> None:
    catalog = StaticCatalog(MODELS, PRICES)
    with pytest.raises(ModelNotFound):
        catalog.choose(ANYONE, "nope", Lane.BATCH, None)
    who = dataclasses.replace(ANYONE, lanes=frozenset({Lane.BATCH}))
    with pytest.raises(NotAllowed):
        catalog.choose(who, "small", Lane.PREMIUM, None)


def test_a_model_without_a_price_in_some_lane_is_refused_at_start() -> None:
    with pytest.raises(ValueError, match=r"scripted: no price for the \w+ lane"):
        StaticCatalog(MODELS, PRICES[:-1])


def test_the_list_has_what_the_key_may_use_sorted_by_id() -> None:
    catalog = StaticCatalog(MODELS, PRICES)
    assert [card.id for card in catalog.models(ANYONE)] == ["scripted", "smollm2-135m-instruct"]
    who = dataclasses.replace(ANYONE, models=frozenset({"default"}))
    (card,) = catalog.models(who)
    assert (card.id, card.aliases, card.owned_by) == (SMOLLM2.id, ("small", "default"), "forebay")
    assert (card.context_tokens, card.max_output_tokens) == (8192, 2048)


def test_a_fingerprint_changes_with_engine_weights_and_template_and_not_with_prices() -> None:
    def fingerprint(version: str = "1", **changes: object) -> str:
        model = dataclasses.replace(SMOLLM2, **changes)
        prices = [Price(i, t) for i, t in enumerate(price_terms(model, LaneFactors()))]
        catalog = StaticCatalog([model], prices, engine_versions={"openvino": version})
        return catalog.choose(ANYONE, "small", Lane.BATCH, None).fingerprint

    assert fingerprint() == fingerprint(max_output_tokens=1000)
    others = [
        fingerprint("2"),
        fingerprint(chat_template="x"),
        fingerprint(source=dataclasses.replace(SMOLLM2.source, sha256="0" * 64)),
        fingerprint(max_batched_tokens=512),
    ]
    assert len({fingerprint(), *others}) == 5
    assert fingerprint().startswith("fp_")
