-- The ledger's schema of version 2, as it was written; a test upgrades a file that it made.
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

PRAGMA application_id = 1181708898;
PRAGMA user_version = 2;
