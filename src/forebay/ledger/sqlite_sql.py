"""Every SQL statement of the SQLite ledger, by name, and the schema that they need.

The tables, and which invariants the store itself refuses to break (a statement that would is
rolled back, whatever code asked for it):

- `account`     one scope's limits and its open holds                           L15
- `balance`     one scope's money in one period: posted, pending, high water    L1 (signs), L2
- `price`       immutable versions of prices                                    L11
- `hold`        the unresolved holds; a resolution deletes its hold             L4 (one of an id)
- `resolution`  append-only: usage event, outbox entry and audit link           L3, L4, L5
- `beat`        the newest beat of each process
- `sweep`       how often was swept: a sweep must fail when beats cannot be written

Conservation is the store's own work: inserting a hold reserves its amount on its three balances and
counts it on its three accounts, inserting a resolution takes that back, posts the charge and
deletes the hold (two triggers). So a verb is one question and one insert.

`high_water_nanos` = max(cap, posted + pending), or NULL without a cap: it lets a cap be lowered
under what is spoken for, and follows it down as holds resolve. `open_high_water` likewise.
SQLite's `max(a, b)` is NULL as soon as one of them is.

Not here: how they are run (`sqlite_verbs`, `sqlite_reads`) and on which connection (`sqlite`).
"""

from __future__ import annotations

APPLICATION_ID = 0x466F7262  # "Forb", in the file's header
SCHEMA_VERSION = 2  # in user_version; 1 was never released

SCHEMA = """
CREATE TABLE account (
  scope           TEXT PRIMARY KEY,
  cap_nanos       INTEGER CHECK (cap_nanos >= 0),
  period          TEXT NOT NULL CHECK (period IN ('total', 'month', 'day')),
  max_open_holds  INTEGER CHECK (max_open_holds >= 0),
  open_holds      INTEGER NOT NULL DEFAULT 0 CHECK (open_holds >= 0),
  open_high_water INTEGER,
  CHECK (open_high_water IS NULL OR open_holds <= open_high_water)
) STRICT, WITHOUT ROWID;

CREATE TABLE balance (
  scope            TEXT NOT NULL REFERENCES account (scope),
  period_id        TEXT NOT NULL,
  posted_nanos     INTEGER NOT NULL DEFAULT 0 CHECK (posted_nanos >= 0),
  pending_nanos    INTEGER NOT NULL DEFAULT 0 CHECK (pending_nanos >= 0),
  high_water_nanos INTEGER,
  PRIMARY KEY (scope, period_id),
  CHECK (high_water_nanos IS NULL OR posted_nanos + pending_nanos <= high_water_nanos)
) STRICT, WITHOUT ROWID;

CREATE TABLE price (
  version            INTEGER PRIMARY KEY,
  model              TEXT NOT NULL,
  lane               TEXT NOT NULL,
  input_nanos        INTEGER NOT NULL CHECK (input_nanos >= 0),
  cached_input_nanos INTEGER NOT NULL CHECK (cached_input_nanos BETWEEN 0 AND input_nanos),
  output_nanos       INTEGER NOT NULL CHECK (output_nanos >= 0)
) STRICT;
CREATE INDEX price_newest ON price (model, lane, version);

CREATE TABLE hold (
  id                  TEXT PRIMARY KEY,
  organisation_id     TEXT NOT NULL,
  project_id          TEXT NOT NULL,
  key_id              TEXT NOT NULL,
  organisation_period TEXT NOT NULL,
  project_period      TEXT NOT NULL,
  key_period          TEXT NOT NULL,
  model               TEXT NOT NULL,
  lane                TEXT NOT NULL,
  price_version       INTEGER NOT NULL REFERENCES price (version),
  input_tokens        INTEGER NOT NULL CHECK (input_tokens >= 0),
  ceiling_tokens      INTEGER NOT NULL CHECK (ceiling_tokens >= 1),
  choices             INTEGER NOT NULL CHECK (choices >= 1),
  streamed            INTEGER NOT NULL CHECK (streamed IN (0, 1)),
  owner               TEXT NOT NULL,
  attempt             INTEGER NOT NULL CHECK (attempt >= 1),
  amount_nanos        INTEGER NOT NULL CHECK (amount_nanos >= 0),
  created_at          REAL NOT NULL,
  FOREIGN KEY (organisation_id, organisation_period) REFERENCES balance (scope, period_id),
  FOREIGN KEY (project_id, project_period) REFERENCES balance (scope, period_id),
  FOREIGN KEY (key_id, key_period) REFERENCES balance (scope, period_id)
) STRICT;
CREATE INDEX hold_owner ON hold (owner);

CREATE TABLE resolution (
  sequence            INTEGER PRIMARY KEY,
  call_id             TEXT NOT NULL UNIQUE,
  organisation_id     TEXT NOT NULL,
  project_id          TEXT NOT NULL,
  key_id              TEXT NOT NULL,
  organisation_period TEXT NOT NULL,
  project_period      TEXT NOT NULL,
  key_period          TEXT NOT NULL,
  model               TEXT NOT NULL,
  lane                TEXT NOT NULL,
  outcome             TEXT NOT NULL,
  reason              TEXT NOT NULL,
  attempt             INTEGER NOT NULL,
  input_tokens        INTEGER NOT NULL CHECK (input_tokens >= 0),
  cached_input_tokens INTEGER NOT NULL CHECK (cached_input_tokens BETWEEN 0 AND input_tokens),
  output_tokens       INTEGER NOT NULL CHECK (output_tokens >= 0),
  finish_reasons      BLOB NOT NULL,
  counted             TEXT NOT NULL,
  queue_ms            INTEGER,
  ttft_ms             INTEGER,
  duration_ms         INTEGER,
  price_version       INTEGER NOT NULL REFERENCES price (version),
  hold_nanos          INTEGER NOT NULL,
  amount_nanos        INTEGER NOT NULL CHECK (amount_nanos BETWEEN 0 AND hold_nanos),
  created_at          REAL NOT NULL,
  resolved_at         REAL NOT NULL,
  previous_hash       BLOB NOT NULL CHECK (length(previous_hash) = 32),
  hash                BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
CREATE INDEX resolution_created ON resolution (created_at);
CREATE INDEX resolution_organisation ON resolution (organisation_id, sequence);

CREATE TRIGGER hold_reserves BEFORE INSERT ON hold BEGIN
  INSERT INTO balance (scope, period_id, pending_nanos, high_water_nanos)
  SELECT scope,
         CASE scope WHEN NEW.organisation_id THEN NEW.organisation_period
                    WHEN NEW.project_id THEN NEW.project_period ELSE NEW.key_period END,
         NEW.amount_nanos, cap_nanos
    FROM account
   WHERE scope IN (NEW.organisation_id, NEW.project_id, NEW.key_id)
  ON CONFLICT (scope, period_id) DO UPDATE SET pending_nanos = pending_nanos + excluded.pending_nanos;
  UPDATE account SET open_holds = open_holds + 1
   WHERE scope IN (NEW.organisation_id, NEW.project_id, NEW.key_id);
END;

CREATE TRIGGER resolution_ends_its_hold AFTER INSERT ON resolution BEGIN
  UPDATE balance
     SET pending_nanos = pending_nanos - NEW.hold_nanos,
         posted_nanos = posted_nanos + NEW.amount_nanos,
         high_water_nanos = (SELECT max(cap_nanos, balance.posted_nanos + NEW.amount_nanos
                                                   + balance.pending_nanos - NEW.hold_nanos)
                               FROM account WHERE account.scope = balance.scope)
   WHERE (scope, period_id) IN (VALUES (NEW.organisation_id, NEW.organisation_period),
                                       (NEW.project_id, NEW.project_period),
                                       (NEW.key_id, NEW.key_period));
  UPDATE account
     SET open_holds = open_holds - 1,
         open_high_water = max(max_open_holds, open_holds - 1)
   WHERE scope IN (NEW.organisation_id, NEW.project_id, NEW.key_id);
  DELETE FROM hold WHERE id = NEW.call_id;
END;

CREATE TABLE beat (
  process  TEXT PRIMARY KEY,
  counter  INTEGER NOT NULL,
  progress BLOB NOT NULL
) STRICT;

CREATE TABLE sweep (
  id    INTEGER PRIMARY KEY CHECK (id = 1),
  count INTEGER NOT NULL
) STRICT;
"""

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
amount_nanos, created_at
"""

ADD_HOLD = f"""
INSERT INTO hold ({HOLD_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""  # noqa: S608 - a constant

HOLD = f"SELECT {HOLD_COLUMNS} FROM hold WHERE id = ?"  # noqa: S608 - a constant

HOLDS_OF = f"SELECT {HOLD_COLUMNS} FROM hold WHERE owner = ? ORDER BY rowid"  # noqa: S608 - a constant

RAISE_ATTEMPT = "UPDATE hold SET attempt = ?2 WHERE id = ?1"

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
