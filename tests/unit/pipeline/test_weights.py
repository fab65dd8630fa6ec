from __future__ import annotations

import asyncio

import pytest

from forebay.pipeline.weights import Weights


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_as_much_as_there_is_and_the_rest_in_order() -> None:
    weights, order = Weights(10), []

    async def one(name: str, weight: int) -> None:
        await weights.take(weight)
        order.append(name)

    tasks = [asyncio.ensure_future(one(*each)) for each in (("a", 6), ("b", 6), ("c", 1))]
    await settle()
    assert order == ["a"]  # c would fit, and does not overtake
    weights.give_back(6)
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]


async def test_what_is_heavier_than_all_of_it_goes_alone() -> None:
    weights = Weights(10)
    await weights.take(1)
    heavy = asyncio.ensure_future(weights.take(50))
    await settle()
    assert not heavy.done()
    weights.give_back(1)
    await heavy
    light = asyncio.ensure_future(weights.take(1))
    await settle()
    assert not light.done()
    weights.give_back(50)
    await light


async def test_who_is_cancelled_as_room_comes_is_passed_over() -> None:
    weights = Weights(10)
    await weights.take(10)
    first, second = (asyncio.ensure_future(weights.take(10)) for _ in range(2))
    await settle()
    first.cancel()
    weights.give_back(10)  # before the first has heard of it
    await asyncio.wait_for(second, 1)
    await asyncio.wait([first])
    assert first.cancelled()


@pytest.mark.parametrize("given_first", [False, True])
async def test_who_is_cancelled_has_taken_nothing(given_first: bool) -> None:
    weights = Weights(10)
    await weights.take(10)
    first, second = (asyncio.ensure_future(weights.take(10)) for _ in range(2))
    await settle()
    if given_first:
        weights.give_back(10)  # to the first, which has not heard of it yet
    first.cancel()
    await settle()
    if not given_first:
        weights.give_back(10)
    await asyncio.wait_for(second, 1)
    assert first.cancelled()
