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

ACCOUNT = "SELECT scope, cap_nanos, period, max_open_holds FROM account WHERE scope = ?"

SET_CAP = "UPDATE account SET cap_nanos = ?2, period = ?3 WHERE scope = ?1"

FOLLOW_CAP = """
UPDATE balance SET high_water_nanos = max(?2, posted_nanos + pending_nanos) WHERE scope = ?1
"""

SET_MAX_OPEN = """
UPDATE account SET max_open_holds = ?2, open_high_water = max(?2, open_holds)
 WHERE scope = ?1 RETURNING 1
"""

TOTAL = "SELECT posted_nanos + pending_nanos FROM balance WHERE scope = ? AND period_id = ''"

CREDIT = "SELECT scope, amount_nanos FROM credit WHERE id = ?"

ADD_CREDIT = "INSERT INTO credit (id, scope, amount_nanos, at) VALUES (?, ?, ?, ?)"

# Another period of a scope: its balances are made anew from what was settled and what is held.

_DAY = "strftime('%Y-%m-%d', floor(created_at), 'unixepoch')"

_PERIOD = (
    f"CASE :period WHEN 'total' THEN '' WHEN 'month' THEN substr({_DAY}, 1, 7) ELSE {_DAY} END"
)

_NEWEST_SEQUENCE = "(SELECT coalesce(max(sequence), 0) FROM resolution)"

POSTED = f"""
SELECT {_NEWEST_SEQUENCE}, NULL, NULL
UNION ALL
SELECT NULL, {_PERIOD} AS period_id, sum(amount_nanos)
  FROM resolution WHERE :scope IN (organisation_id, project_id, key_id) GROUP BY period_id
"""  # noqa: S608 - constants

CLEAR_BALANCES = """
UPDATE balance SET posted_nanos = 0, pending_nanos = 0, high_water_nanos = NULL WHERE scope = ?
"""

_ADD_TO_BALANCE = """
ON CONFLICT (scope, period_id) DO UPDATE
   SET posted_nanos = posted_nanos + excluded.posted_nanos,
       pending_nanos = pending_nanos + excluded.pending_nanos
"""

ADD_POSTED = f"""
INSERT INTO balance (scope, period_id, posted_nanos) VALUES (?, ?, ?) {_ADD_TO_BALANCE}
"""  # noqa: S608 - constants

ADD_NEWER = f"""
INSERT INTO balance (scope, period_id, posted_nanos)
SELECT :scope, {_PERIOD} AS period_id, sum(amount_nanos)
  FROM resolution
 WHERE sequence > :sequence AND :scope IN (organisation_id, project_id, key_id) GROUP BY period_id
{_ADD_TO_BALANCE}
"""  # noqa: S608 - constants

ADD_PENDING = f"""
INSERT INTO balance (scope, period_id, pending_nanos)
SELECT :scope, {_PERIOD} AS period_id, sum(amount_nanos)
  FROM hold WHERE :scope IN (organisation_id, project_id, key_id) GROUP BY period_id
{_ADD_TO_BALANCE}
"""  # noqa: S608 - constants

MOVE_HOLDS = f"""
UPDATE hold
   SET organisation_period = iif(organisation_id = :scope, {_PERIOD}, organisation_period),
       project_period = iif(project_id = :scope, {_PERIOD}, project_period),
       key_period = iif(key_id = :scope, {_PERIOD}, key_period)
 WHERE :scope IN (organisation_id, project_id, key_id)
"""  # noqa: S608 - constants

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
    "day": f"SELECT {_DAY} AS total_of, {_TOTALS}",
}

LARGEST = "GROUP BY total_of ORDER BY sum(amount_nanos) DESC, total_of LIMIT :limit"

SLICES = f"""
SELECT CAST(created_at / :width AS INTEGER) * :width, project_id, key_id, model, lane, {_TOTALS}
"""

BY_SLICE = "GROUP BY 1, 2, 3, 4, 5 ORDER BY 1, 3, 4, 5"

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
