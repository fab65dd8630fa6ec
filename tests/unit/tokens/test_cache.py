from __future__ import annotations

import threading

from forebay.tokens.cache import BoundedCache


def test_what_was_put_is_found_and_the_rest_is_not() -> None:
    cache = BoundedCache[str, int](entries=4, weight=800)
    cache.put("a", 1, weight=10)
    assert (cache.get("a"), cache.get("b")) == (1, None)


def test_the_least_recently_used_goes_first() -> None:
    cache = BoundedCache[str, int](entries=2, weight=800)
    cache.put("a", 1, weight=1)
    cache.put("b", 2, weight=1)
    cache.get("a")
    cache.put("c", 3, weight=1)
    assert [cache.get(key) for key in "abc"] == [1, None, 3]


def test_the_weight_is_bounded_also_when_values_are_replaced() -> None:
    """K3."""
    cache = BoundedCache[int, int](entries=1000, weight=80)
    for number in range(100):
        cache.put(number % 30, number, weight=1 + number % 10)
        assert cache.used_weight <= 80
    assert 0 < len(cache) <= 30


def test_what_would_fill_the_cache_alone_is_not_kept() -> None:
    cache = BoundedCache[str, int](entries=10, weight=80)
    cache.put("small", 1, weight=10)
    cache.put("big", 2, weight=11)
    assert (cache.get("small"), cache.get("big")) == (1, None)


def test_a_cache_of_no_entries_keeps_nothing() -> None:
    cache = BoundedCache[str, int](entries=0, weight=80)
    cache.put("a", 1, weight=1)
    assert (cache.get("a"), cache.used_weight) == (None, 0)


def test_threads_may_share_it() -> None:
    cache = BoundedCache[int, int](entries=50, weight=400)

    def work(seed: int) -> None:
        for number in range(2000):
            cache.put((number * seed) % 90, number, weight=number % 20)
            cache.get((number * 7) % 90)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert cache.used_weight <= 400
    assert len(cache) <= 50
