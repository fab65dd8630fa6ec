"""Every SQL statement of the SQLite ledger, by name.

Not here: the tables and what they refuse (`sqlite_schema`), how the statements are run
(`sqlite_verbs`, `sqlite_reads`) and on which connection (`sqlite`).
"""

from __future__ import annotations

# Accounts and balances. ?4 is a UTC day; its first seven characters are the month.

STANDINGS = """
SELECT a.scope, a.cap_nanos, a.period, a.max_open_holds, a.open_holds,
       coalesce(b.posted_nanos, 0), coalesce(b.pending_nanos, 0)
  FROM account AS a
  LEFT JOIN balance AS b ON b.scope = a.scope
   AND b.period_id = CASE a.period WHEN 'total' THEN '' WHEN 'month' THEN substr(?4, 1, 7)
                                   ELSE ?4 END
 WHERE a.scope IN (?1, ?2, ?3)
"""

BALANCE = """
SELECT a.cap_nanos, a.period, a.max_open_holds, a.open_holds,
       coalesce(b.posted_nanos, 0), coalesce(b.pending_nanos, 0),
       iif(b.scope IS NULL, a.cap_nanos, b.high_water_nanos)
  FROM account AS a
  LEFT JOIN balance AS b ON b.scope = a.scope
   AND b.period_id = CASE a.period WHEN 'total' THEN '' WHEN 'month' THEN substr(?2, 1, 7)
                                   ELSE ?2 END
 WHERE a.scope = ?1
"""

OPEN_ACCOUNT = """
INSERT INTO account (scope, cap_nanos, period, max_open_holds, open_high_water)
VALUES (?1, ?2, ?3, ?4, ?4) ON CONFLICT DO NOTHING RETURNING 1
"""

SET_CAP = "UPDATE account SET cap_nanos = ?2 WHERE scope = ?1 RETURNING 1"

FOLLOW_CAP = """
UPDATE balance SET high_water_nanos = max(?2, posted_nanos + pending_nanos) WHERE scope = ?1
"""

# Holds

KNOWN = """
SELECT EXISTS (SELECT 1 FROM hold WHERE id = ?1), EXISTS (SELECT 1 FROM resolution WHERE call_id = ?1)
"""

HOLD_COLUMNS = """
id, organisation_id, project_id, key_id, organisation_period, project_period, key_period,
model, lane, price_version, input_tokens, ceiling_tokens, choices, streamed, owner, attempt,
amount_nanos, created_at, claim_key
"""

ADD_HOLD = f"""
INSERT INTO hold ({HOLD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""  # noqa: S608 - a constant

HOLD = f"SELECT {HOLD_COLUMNS} FROM hold WHERE id = ?"  # noqa: S608 - a constant

HOLDS_OF = f"SELECT {HOLD_COLUMNS} FROM hold WHERE owner = ? ORDER BY rowid"  # noqa: S608 - a constant

RAISE_ATTEMPT = "UPDATE hold SET attempt = ?2 WHERE id = ?1"

# Claims

CLAIM = """
SELECT call_id, fingerprint, head, claimed_at, answer FROM claim WHERE organisation_id = ? AND key = ?
"""

ADD_CLAIM = """
INSERT INTO claim (organisation_id, key, call_id, fingerprint, head, claimed_at)
VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (organisation_id, key) DO UPDATE
   SET call_id = excluded.call_id, fingerprint = excluded.fingerprint, head = excluded.head,
       claimed_at = excluded.claimed_at, resolution = NULL, answer = NULL, kept_bytes = 0
"""

KEEP_ANSWER = """
UPDATE claim
   SET resolution = ?3, answer = ?4,
       kept_bytes = octet_length(key) + length(fingerprint) + length(head) + length(?4)
 WHERE organisation_id = ?1 AND key = ?2
"""

FORGET_CLAIM = "DELETE FROM claim WHERE organisation_id = ? AND key = ?"

KEPT_BYTES = "SELECT bytes FROM kept"

FORGET_OLDEST = """
DELETE FROM claim WHERE resolution = (SELECT min(resolution) FROM claim WHERE resolution IS NOT NULL)
"""

FORGET_EXPIRED = """
DELETE FROM claim WHERE rowid IN (
  SELECT rowid FROM claim WHERE resolution IS NOT NULL AND claimed_at <= ? ORDER BY claimed_at LIMIT ?
)
"""

# Resolutions

HEAD = "SELECT sequence, hash FROM resolution ORDER BY sequence DESC LIMIT 1"

ROW_COLUMNS = """
sequence, call_id, organisation_id, project_id, key_id, model, lane, outcome, reason, attempt,
input_tokens, cached_input_tokens, output_tokens, finish_reasons, counted,
queue_ms, ttft_ms, duration_ms, price_version, amount_nanos, created_at, resolved_at,
previous_hash, hash
"""

ADD_ROW = f"""
INSERT INTO resolution ({ROW_COLUMNS}, organisation_period, project_period, key_period, hold_nanos)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""  # noqa: S608 - a constant

ROW = f"SELECT {ROW_COLUMNS} FROM resolution WHERE call_id = ?"  # noqa: S608 - a constant

# A query is one of these, then WHERE with the filters that were asked for, then its ending.

ROWS = f"SELECT {ROW_COLUMNS} FROM resolution"  # noqa: S608 - a constant

NEWEST = "ORDER BY sequence DESC LIMIT :limit"

FILTERS = {
    "organisation_id": "organisation_id = :organisation_id",
    "project_id": "project_id = :project_id",
    "key_id": "key_id = :key_id",
    "call_id": "call_id = :call_id",
    "since": "created_at >= :since",
    "until": "created_at < :until",
}

_TOTALS = """
count(*), sum(input_tokens), sum(cached_input_tokens), sum(output_tokens), sum(amount_nanos)
FROM resolution
"""

TOTALS = {
    "key": f"SELECT key_id AS total_of, {_TOTALS}",
    "project": f"SELECT project_id AS total_of, {_TOTALS}",
    "organisation": f"SELECT organisation_id AS total_of, {_TOTALS}",
    "model": f"SELECT model AS total_of, {_TOTALS}",
    "day": f"SELECT strftime('%Y-%m-%d', floor(created_at), 'unixepoch') AS total_of, {_TOTALS}",
}

LARGEST = "GROUP BY total_of ORDER BY sum(amount_nanos) DESC, total_of LIMIT :limit"

# Prices

PRICE = """
SELECT version, model, lane, input_nanos, cached_input_nanos, output_nanos
  FROM price WHERE version = ?
"""

NEWEST_PRICE = """
SELECT version, model, lane, input_nanos, cached_input_nanos, output_nanos
  FROM price WHERE model = ? AND lane = ? ORDER BY version DESC LIMIT 1
"""

ADD_PRICE = """
INSERT INTO price (model, lane, input_nanos, cached_input_nanos, output_nanos)
VALUES (?, ?, ?, ?, ?) RETURNING version
"""

# Liveness

BEAT = """
INSERT INTO beat (process, counter, progress) VALUES (?, ?, ?)
ON CONFLICT (process) DO UPDATE SET counter = excluded.counter, progress = excluded.progress
"""

COUNTERS = """
SELECT owner, NULL FROM (SELECT DISTINCT owner FROM hold)
 WHERE owner NOT IN (SELECT process FROM beat)
UNION ALL SELECT process, counter FROM beat
"""

PROGRESS = "SELECT progress FROM beat WHERE process = ?"

COUNT_SWEEP = """
INSERT INTO sweep (id, count) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET count = count + 1
"""

DROP_BEAT = "DELETE FROM beat WHERE process = ?"
