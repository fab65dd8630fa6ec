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

POSTED = f"""
WITH posted AS (
  SELECT created_at, amount_nanos FROM resolution
   WHERE organisation_id = :scope OR project_id = :scope OR key_id = :scope
  UNION ALL SELECT unixepoch(day), posted_nanos FROM sealed WHERE scope = :scope
)
SELECT sequence, NULL, NULL FROM head
UNION ALL SELECT NULL, {_PERIOD} AS period_id, sum(amount_nanos) FROM posted GROUP BY period_id
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
amount_nanos, created_at, claim_key, kind
"""

ADD_HOLD = f"""
INSERT INTO hold ({HOLD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""  # noqa: S608 - a constant

HOLD = f"SELECT {HOLD_COLUMNS} FROM hold WHERE id = ?"  # noqa: S608 - a constant

HOLDS_OF = f"SELECT {HOLD_COLUMNS} FROM hold WHERE owner = ? ORDER BY rowid"  # noqa: S608 - a constant

RAISE_ATTEMPT = "UPDATE hold SET attempt = ?2 WHERE id = ?1"
ADOPT = "UPDATE hold SET attempt = ?2, owner = ?3 WHERE id = ?1"

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

_COUNTED = "(SELECT coalesce(sum(kept_bytes), 0) FROM claim)"

COUNT_KEPT = f"UPDATE kept SET bytes = {_COUNTED}"  # noqa: S608 - a constant

FORGET_OLDEST = """
DELETE FROM claim WHERE resolution = (SELECT min(resolution) FROM claim WHERE resolution IS NOT NULL)
"""

FORGET_EXPIRED = """
DELETE FROM claim WHERE rowid IN (
  SELECT rowid FROM claim WHERE resolution IS NOT NULL AND claimed_at <= ? ORDER BY claimed_at LIMIT ?
)
"""

# Resolutions

HEAD = "SELECT sequence, hash FROM head"

ROW_COLUMNS = """
sequence, call_id, organisation_id, project_id, key_id, model, lane, outcome, reason, attempt,
input_tokens, cached_input_tokens, output_tokens, finish_reasons, counted,
queue_ms, ttft_ms, duration_ms, price_version, amount_nanos, created_at, resolved_at,
previous_hash, hash, kind
"""

ADD_ROW = f"""
INSERT INTO resolution ({ROW_COLUMNS}, organisation_period, project_period, key_period, hold_nanos)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""  # noqa: S608 - a constant

ROW = f"SELECT {ROW_COLUMNS} FROM resolution WHERE call_id = ?"  # noqa: S608 - a constant

# A query is one of these, then WHERE with the filters that were asked for, then its ending.

ROWS = f"SELECT {ROW_COLUMNS} FROM resolution"  # noqa: S608 - a constant

NEWEST = "ORDER BY sequence DESC LIMIT :limit"

# The narrowest first: it is the one whose index serves.
SCOPES = {
    "call_id": "call_id = :call_id",
    "key_id": "key_id = :key_id",
    "project_id": "project_id = :project_id",
    "organisation_id": "organisation_id = :organisation_id",
}

TIMES = {
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

# Audits

SEAL = "SELECT sequence, hash FROM seal"

ENDS = """
SELECT seal.sequence, seal.hash, head.sequence, head.hash,
       (SELECT min(sequence) FROM resolution), (SELECT max(sequence) FROM resolution)
  FROM seal, head
"""

CHAIN = f"""
SELECT {ROW_COLUMNS} FROM resolution WHERE sequence > ? AND sequence <= ? ORDER BY sequence LIMIT ?
"""  # noqa: S608 - a constant

OUTBOX = f"""
SELECT {ROW_COLUMNS} FROM resolution WHERE sequence > ? ORDER BY sequence LIMIT ?
"""  # noqa: S608 - a constant

COUNTS = """
SELECT (SELECT count(*) FROM resolution), (SELECT count(*) FROM hold),
       (SELECT count(*) FROM engine_window), (SELECT count(*) FROM engine_window WHERE NOT complete)
"""

# The rows that `differences.of_row` has something to say about, or might.
ODD_ROWS = """
SELECT r.sequence, r.call_id, r.outcome, r.input_tokens, r.cached_input_tokens, r.output_tokens,
       r.amount_nanos, r.hold_nanos,
       p.version, p.model, p.lane, p.input_nanos, p.cached_input_nanos, p.output_nanos
  FROM resolution AS r LEFT JOIN price AS p ON p.version = r.price_version
 WHERE p.version IS NULL
    OR r.amount_nanos > r.hold_nanos
    OR r.cached_input_tokens NOT BETWEEN 0 AND r.input_tokens OR r.output_tokens < 0
    OR p.input_nanos * r.input_tokens + p.output_nanos * r.output_tokens > r.hold_nanos
    OR (r.amount_nanos <> 0 OR r.outcome = 'completed')
       AND r.amount_nanos <> p.input_nanos * (r.input_tokens - r.cached_input_tokens)
                             + p.cached_input_nanos * r.cached_input_tokens
                             + p.output_nanos * r.output_tokens
 ORDER BY r.sequence
"""

_PERIODS = f"('', substr({_DAY}, 1, 7), {_DAY})"
ODD_PERIODS = f"""
SELECT sequence, call_id, {_DAY} FROM resolution
 WHERE organisation_period NOT IN {_PERIODS}
    OR project_period NOT IN {_PERIODS} OR key_period NOT IN {_PERIODS}
 ORDER BY sequence
"""  # noqa: S608 - constants

ALL_HOLDS = f"SELECT {HOLD_COLUMNS} FROM hold ORDER BY rowid"  # noqa: S608 - a constant

# Every scope and period anew: the large table is read once.
BALANCES = f"""
WITH calls AS MATERIALIZED (
  SELECT organisation_id, project_id, key_id, {_DAY} AS day,
         sum(amount_nanos) AS posted, 0 AS pending
    FROM resolution GROUP BY organisation_id, project_id, key_id, day
  UNION ALL
  SELECT organisation_id, project_id, key_id, {_DAY} AS day, 0, sum(amount_nanos)
    FROM hold GROUP BY organisation_id, project_id, key_id, day
), spoken AS (
  SELECT organisation_id AS scope, day, posted, pending FROM calls
  UNION ALL SELECT project_id, day, posted, pending FROM calls
  UNION ALL SELECT key_id, day, posted, pending FROM calls
  UNION ALL SELECT scope, day, posted_nanos, 0 FROM sealed
), expected AS (
  SELECT s.scope,
         CASE a.period WHEN 'month' THEN substr(s.day, 1, 7) WHEN 'day' THEN s.day ELSE '' END
           AS period_id,
         sum(s.posted) AS posted, sum(s.pending) AS pending
    FROM spoken AS s LEFT JOIN account AS a ON a.scope = s.scope GROUP BY 1, 2
)
SELECT coalesce(e.scope, b.scope), coalesce(e.period_id, b.period_id),
       coalesce(b.posted_nanos, 0), coalesce(b.pending_nanos, 0),
       coalesce(e.posted, 0), coalesce(e.pending, 0), e.scope IS NOT NULL
  FROM expected AS e FULL JOIN balance AS b ON b.scope = e.scope AND b.period_id = e.period_id
 ORDER BY 1, 2
"""  # noqa: S608 - constants

OPEN = """
WITH calls AS (
  SELECT organisation_id, project_id, key_id, count(*) AS open
    FROM hold GROUP BY organisation_id, project_id, key_id
), counted AS (
  SELECT organisation_id AS scope, open FROM calls
  UNION ALL SELECT project_id, open FROM calls
  UNION ALL SELECT key_id, open FROM calls
)
SELECT a.scope, a.open_holds, coalesce(sum(c.open), 0)
  FROM account AS a LEFT JOIN counted AS c ON c.scope = a.scope GROUP BY a.scope ORDER BY a.scope
"""

KEPT = f"SELECT coalesce((SELECT bytes FROM kept), 0), {_COUNTED}"  # noqa: S608 - a constant

# Archiving

ROW_HASH = "SELECT sequence, hash FROM resolution WHERE sequence = ?"

YOUNG = """
SELECT min(sequence) FROM resolution
 WHERE sequence <= ?1 AND (created_at >= ?2 OR resolved_at >= ?2)
"""

ADD_SEALED = f"""
WITH going AS MATERIALIZED (
  SELECT organisation_id, project_id, key_id, {_DAY} AS day, amount_nanos
    FROM resolution WHERE sequence <= ?
), posted AS (
  SELECT organisation_id AS scope, day, amount_nanos FROM going
  UNION ALL SELECT project_id, day, amount_nanos FROM going
  UNION ALL SELECT key_id, day, amount_nanos FROM going
)
INSERT INTO sealed (scope, day, posted_nanos)
SELECT scope, day, sum(amount_nanos) FROM posted WHERE true GROUP BY scope, day
ON CONFLICT (scope, day) DO UPDATE SET posted_nanos = posted_nanos + excluded.posted_nanos
"""  # noqa: S608 - constants

SET_SEAL = """
UPDATE seal SET (sequence, hash) = (
  SELECT sequence, hash FROM resolution WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1
)
"""

DROP_ROWS = "DELETE FROM resolution WHERE sequence <= ?"

# Windows of engines

_WINDOW = "engine, boot, minute_at, engine_tokens, received_tokens, discarded_tokens, complete"

ADD_WINDOW = f"INSERT OR REPLACE INTO engine_window ({_WINDOW}) VALUES (?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 - a constant

WINDOWS = f"""
SELECT {_WINDOW} FROM engine_window WHERE minute_at >= ? ORDER BY minute_at, engine, boot
"""  # noqa: S608 - a constant

DROP_WINDOWS = """
DELETE FROM engine_window
 WHERE minute_at < ? AND (NOT complete OR engine_tokens = received_tokens + discarded_tokens)
"""
