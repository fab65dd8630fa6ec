"""Conversations of a server that is killed over and over, read from its files.

What a conversation holds is what was settled: every question with its answer, in the order of the
settlements, and nothing of a call that was not completed (C4, C5).
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path

from forebay.core.dialogue import answer_id
from forebay.core.usage import Outcome, UsageRow
from forebay.testing.rawhttp import Answer

_ITEMS = """
SELECT conversation_id, id, role FROM dialogue_items WHERE conversation_id IS NOT NULL ORDER BY sequence
"""
_PENDING = "SELECT id FROM turns WHERE state IN ('open', 'kept')"


def check(data_dir: Path, rows: Mapping[str, UsageRow], answers: Iterable[Answer]) -> int:
    """Raises AssertionError for the first fault; answers how many turns there are."""
    with closing(sqlite3.connect(f"file:{data_dir / 'forebay.db'}?mode=ro", uri=True)) as database:
        assert database.execute(_PENDING).fetchall() == [], "a turn that nobody was told of"
        said: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for conversation_id, id_, role in database.execute(_ITEMS):
            said[conversation_id].append((id_, role))
    by_answer = {answer_id(row.call_id): row for row in rows.values()}
    for items in said.values():
        assert [role for _, role in items] == ["user", "assistant"] * (len(items) // 2), items
        settled = [by_answer[id_] for id_, role in items if role == "assistant"]
        assert {row.outcome for row in settled} == {Outcome.COMPLETED}
        sequences = [row.sequence for row in settled]
        assert sequences == sorted(set(sequences)), "not in the order of the settlements"
    for answer in answers:
        conversation_id = answer.headers.get("x-forebay-conversation")
        if conversation_id and answer.complete and b'"error":' not in answer.body:
            ids = [id_ for id_, _ in said[conversation_id]]
            assert answer_id(answer.request_id) in ids, "whose end was seen is lost"
    return sum(map(len, said.values())) // 2
