"""The tables and triggers of the SQLite ledger.

Which invariants the store itself refuses to break (a statement that would is rolled back, whatever
code asked for it):

- `account`     one scope's limits and its open holds                           L15
- `balance`     one scope's money in one period: posted, pending, high water    L1 (signs), L2
- `credit`      append-only: the top-ups of prepaid scopes                      (one of an id)
- `price`       immutable versions of prices                                    L11
- `hold`        the unresolved holds; a resolution deletes its hold             L4 (one of an id)
- `resolution`  append-only: usage event, outbox entry and audit link           L3, L4, L5
- `head`        one row: the newest link of the chain                            L12
- `seal`        one row: the link from which the chain goes on after a drop     L12
- `sealed`      what dropped rows posted, by scope and UTC day                  L1
- `engine_window`  one engine's minute: tokens it made, received and discarded
- `claim`       remembered idempotency keys and the answers kept for them       L9 (one of a key)
- `kept`        one row: how many bytes the kept answers have
- `beat`        the newest beat of each process
- `sweep`       how often was swept: a sweep must fail when beats cannot be written

Conservation is the store's own work: inserting a hold reserves its amount on its three balances and
counts it on its three accounts, inserting a resolution takes that back, posts the charge and
deletes the hold, and moves the head (two triggers). So a verb is one question and one insert. Two more triggers count
the bytes of kept answers; a call without an idempotency key fires neither. That count bounds space,
not money: if it is ever wrong, a settlement goes on and a reconciliation says so.

`high_water_nanos` = max(cap, posted + pending), or NULL without a cap: it lets a cap be lowered
under what is spoken for, and follows it down as holds resolve. `open_high_water` likewise.
SQLite's `max(a, b)` is NULL as soon as one of them is.

Not here: the statements (`sqlite_sql`).
"""

from __future__ import annotations

APPLICATION_ID = 0x466F7262  # "Forb", in the file's header
SCHEMA_VERSION = 4  # in user_version; 1 was never released

_MONEY = """
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
  claim_key           TEXT,
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

# What came with version 3; a file of version 2 is given the same. Every settlement writes into each
# index of `resolution`: there is one for each scope that reports are made of, by time.
_BOOKS = """
CREATE INDEX resolution_organisation ON resolution (organisation_id, created_at);
CREATE INDEX resolution_project ON resolution (project_id, created_at);
CREATE INDEX resolution_key ON resolution (key_id, created_at);

CREATE TABLE credit (
  id           TEXT PRIMARY KEY,
  scope        TEXT NOT NULL REFERENCES account (scope),
  amount_nanos INTEGER NOT NULL CHECK (amount_nanos > 0),
  at           REAL NOT NULL
) STRICT;

CREATE TABLE head (
  id       INTEGER PRIMARY KEY CHECK (id = 1),
  sequence INTEGER NOT NULL,
  hash     BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
INSERT INTO head (id, sequence, hash) VALUES (1, 0, zeroblob(32));

CREATE TABLE seal (
  id       INTEGER PRIMARY KEY CHECK (id = 1),
  sequence INTEGER NOT NULL,
  hash     BLOB NOT NULL CHECK (length(hash) = 32)
) STRICT;
INSERT INTO seal (id, sequence, hash) VALUES (1, 0, zeroblob(32));

CREATE TABLE sealed (
  scope        TEXT NOT NULL,
  day          TEXT NOT NULL,
  posted_nanos INTEGER NOT NULL CHECK (posted_nanos >= 0),
  PRIMARY KEY (scope, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE engine_window (
  engine           TEXT NOT NULL,
  boot             TEXT NOT NULL,
  minute_at        REAL NOT NULL,
  engine_tokens    INTEGER NOT NULL CHECK (engine_tokens >= 0),
  received_tokens  INTEGER NOT NULL CHECK (received_tokens >= 0),
  discarded_tokens INTEGER NOT NULL CHECK (discarded_tokens >= 0),
  complete         INTEGER NOT NULL CHECK (complete IN (0, 1)),
  PRIMARY KEY (minute_at, engine, boot)
) STRICT, WITHOUT ROWID;

CREATE TABLE claim (
  organisation_id TEXT NOT NULL,
  key             TEXT NOT NULL,
  call_id         TEXT NOT NULL,
  fingerprint     BLOB NOT NULL CHECK (length(fingerprint) = 32),
  head            BLOB NOT NULL,
  claimed_at      REAL NOT NULL,
  resolution      INTEGER,
  answer          BLOB,
  kept_bytes      INTEGER NOT NULL DEFAULT 0 CHECK (kept_bytes >= 0),
  UNIQUE (organisation_id, key),
  CHECK ((answer IS NULL) = (resolution IS NULL) AND (answer IS NULL) = (kept_bytes = 0))
) STRICT;
CREATE INDEX claim_oldest ON claim (resolution) WHERE resolution IS NOT NULL;
CREATE INDEX claim_expires ON claim (claimed_at) WHERE resolution IS NOT NULL;

CREATE TABLE kept (
  id    INTEGER PRIMARY KEY CHECK (id = 1),
  bytes INTEGER NOT NULL CHECK (bytes >= 0)
) STRICT;
INSERT INTO kept (id, bytes) VALUES (1, 0);

CREATE TRIGGER claim_keeps AFTER UPDATE OF kept_bytes ON claim BEGIN
  UPDATE kept SET bytes = max(bytes + NEW.kept_bytes - OLD.kept_bytes, 0);
END;

CREATE TRIGGER claim_is_forgotten AFTER DELETE ON claim WHEN OLD.kept_bytes > 0 BEGIN
  UPDATE kept SET bytes = max(bytes - OLD.kept_bytes, 0);
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
  UPDATE head SET sequence = NEW.sequence, hash = NEW.hash WHERE id = 1;
END;
"""

# What came with version 4. Whatever is older was a client's call.
_KINDS = """
ALTER TABLE hold ADD COLUMN kind TEXT NOT NULL DEFAULT 'call';
ALTER TABLE resolution ADD COLUMN kind TEXT NOT NULL DEFAULT 'call';
"""

SCHEMA = _MONEY + _BOOKS + _KINDS

OLDEST_VERSION = 2

UPGRADES = {
    2: f"""
ALTER TABLE hold ADD COLUMN claim_key TEXT;
DROP TRIGGER resolution_ends_its_hold;
DROP INDEX resolution_organisation;
{_BOOKS}
UPDATE head SET (sequence, hash) = (SELECT sequence, hash FROM resolution ORDER BY sequence DESC LIMIT 1)
 WHERE EXISTS (SELECT 1 FROM resolution);
""",  # noqa: S608 - constants
    3: _KINDS,
}
"""From a version to the one after it."""
