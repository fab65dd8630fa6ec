from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.gateway.errors import (
    INVALID_REQUEST_CODES,
    NOT_ALLOWED_CODES,
    OTHER_ANSWERS,
    TABLE,
)
from forebay.gateway.manual import REMEDIES, article, codes, looks, page

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "errors.md"
TABLE_CODES = {row.code for row in TABLE.values() if row.code}
OTHER_CODES = {code for _, code, *_ in OTHER_ANSWERS}


def test_the_reference_page_is_the_table():
    assert REFERENCE.read_text() == page()


def test_every_code_is_explained_with_what_to_do():
    every = TABLE_CODES | OTHER_CODES | set(INVALID_REQUEST_CODES) | set(NOT_ALLOWED_CODES)
    assert set(codes()) == every
    assert set(REMEDIES) == every
    assert all(remedy.endswith(".") for remedy in REMEDIES.values())


def test_every_link_of_the_page_leads_to_a_heading():
    text = page()
    headings = re.findall(r"^## (\w+)$", text, re.MULTILINE)
    assert headings == list(codes())
    assert set(re.findall(r"\]\(#(\w+)\)", text)) == set(headings)


@pytest.mark.parametrize("code", codes())
def test_an_article_says_status_type_headers_meaning_and_remedy(code):
    text = article(code)
    assert text.startswith(f"# {code}\n")
    for each in looks():
        if each.code == code:
            assert f"HTTP {each.status}, type `{each.type}`" in text
            assert each.headers == "–" or each.headers in text
            assert each.meaning in text
    assert f"What to do: {REMEDIES[code]}\n" in text
    assert text.partition("\n")[2].strip() in page()
