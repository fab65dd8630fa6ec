"""Pages of a list that changes while it is read."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forebay.core.errors import InvalidRequest
from forebay.gateway.admin_pages import page


def paged(ids, **query):
    wanted = SimpleNamespace(**{"after": None, "before": None, "limit": 2, "order": "asc", **query})
    found = page(ids, wanted, lambda id_: int(id_[2:], 16), lambda id_: id_)
    return found.data, found.has_more


def test_has_more_is_in_the_direction_that_was_asked_for():
    ids = [f"x_{number:032x}" for number in (1, 2, 4, 5)]
    assert paged(ids, before=ids[3]) == ([2, 4], True)
    assert paged(ids, before=ids[2]) == ([1, 2], False)
    assert paged(ids, before=ids[0]) == ([], False)
    assert paged(ids, after=ids[0], before=ids[3]) == ([2, 4], False)


def test_a_page_goes_on_beside_an_id_that_has_gone():
    ids = [f"x_{number:032x}" for number in (1, 2, 4, 5)]
    gone = f"x_{3:032x}"
    assert paged(ids, before=gone) == ([1, 2], False)
    assert paged(ids, after=gone) == ([4, 5], False)
    assert paged(ids, before=gone, order="desc") == ([5, 4], False)
    assert paged(ids, after=gone, order="desc") == ([2, 1], False)
    assert paged([], after=gone) == ([], False)
    with pytest.raises(InvalidRequest, match="after is no id of this list"):
        paged(ids, after=f"y_{3:032x}")
