"""Table definitions and daily partitions in PostgreSQL. Pure: builds SQL texts.

Messages and attempts have a partition for each day (UTC), which retention drops as a whole. Rows of days far from now,
because of a wrong clock, are in the default partition. Deliveries change while their message progresses, and are small,
so they are in one table. A message has a row for each of its arrivals; the first counts.
"""

from typing import Final

from relay.domain.topics import DAY_S
from relay.history.sql import NUMBER

SCHEMA: Final = "relay_history"
VERSION: Final = 2
"""Version of the tables. Those of version 1 are migrated; those of a newer version are not touched."""
DAYS_BACK: Final = 40
DAYS_AHEAD: Final = 2
BY_DAY: Final = {"messages": "received_at", "attempts": "started_at"}
"""Tables with daily partitions, and the column that selects the day."""
STAGED: Final = ("messages", "deliveries", "attempts", "counts")

_TEXT: Final = 'text COLLATE "C"'  # compared by bytes, as everywhere else
CREATE: Final = f"""
CREATE SCHEMA {SCHEMA};
CREATE TABLE {SCHEMA}.version (number integer NOT NULL);
INSERT INTO {SCHEMA}.version VALUES ({VERSION});
SET LOCAL search_path = {SCHEMA};
CREATE TABLE messages (
    source_id {_TEXT} NOT NULL, message_id {_TEXT} NOT NULL, webhook_id {_TEXT} NOT NULL,
    at_topic text NOT NULL, at_partition bigint NOT NULL, at_offset bigint NOT NULL,
    received_at double precision NOT NULL, event_type {_TEXT}, content_type text, size bigint NOT NULL,
    headers bytea, body bytea, routed smallint NOT NULL,
    PRIMARY KEY (source_id, message_id, received_at, at_partition, at_offset)
) PARTITION BY RANGE (received_at);
CREATE INDEX ON messages (received_at);
CREATE INDEX ON messages (source_id, received_at);
CREATE INDEX ON messages (event_type, received_at);
CREATE INDEX ON messages (received_at) WHERE routed = 0;
CREATE INDEX ON messages (message_id);
CREATE INDEX ON messages (webhook_id);
CREATE TABLE messages_other PARTITION OF messages DEFAULT;
CREATE TABLE deliveries (
    source_id {_TEXT} NOT NULL, message_id {_TEXT} NOT NULL, receiver {_TEXT} NOT NULL, generation bigint NOT NULL,
    progress smallint NOT NULL, attempts bigint NOT NULL, said_rank smallint NOT NULL, said_number bigint NOT NULL,
    said_partition bigint NOT NULL, said_offset bigint NOT NULL, last_status bigint, reason {_TEXT}, detail text,
    updated_at double precision NOT NULL, received_at double precision, life {_TEXT} NOT NULL DEFAULT '',
    PRIMARY KEY (source_id, message_id, receiver)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX ON deliveries (received_at);
CREATE INDEX ON deliveries (receiver, received_at);
CREATE INDEX ON deliveries (progress, received_at) WHERE progress <> 3;
CREATE INDEX ON deliveries (receiver, progress, received_at) WHERE progress <> 3;
CREATE INDEX ON deliveries (reason, received_at) WHERE reason IS NOT NULL;
CREATE INDEX ON deliveries USING brin (updated_at);
CREATE TABLE attempts (
    at_topic text NOT NULL, at_partition bigint NOT NULL, at_offset bigint NOT NULL,
    started_at double precision NOT NULL, kind text NOT NULL, receiver {_TEXT} NOT NULL, source_id {_TEXT} NOT NULL,
    message_id {_TEXT} NOT NULL, well smallint NOT NULL, value bytea NOT NULL, life {_TEXT} NOT NULL DEFAULT '',
    PRIMARY KEY (started_at, at_partition, at_offset)
) PARTITION BY RANGE (started_at);
CREATE INDEX ON attempts (source_id, message_id);
CREATE INDEX ON attempts (receiver, started_at);
CREATE INDEX ON attempts (receiver, started_at) WHERE well = 0;
CREATE TABLE attempts_other PARTITION OF attempts DEFAULT;
CREATE TABLE counts (
    span bigint NOT NULL, begins_at double precision NOT NULL, receiver {_TEXT} NOT NULL, source_id {_TEXT} NOT NULL,
    life {_TEXT} NOT NULL DEFAULT '', {", ".join(f"{name} bigint NOT NULL" for name in NUMBER)},
    PRIMARY KEY (span, begins_at, receiver, source_id, life)
);
CREATE TABLE positions (
    topic text NOT NULL, partition bigint NOT NULL, next_offset bigint NOT NULL, PRIMARY KEY (topic, partition)
);
"""
FROM_1: Final = f"""
SET LOCAL search_path = {SCHEMA};
ALTER TABLE deliveries ADD COLUMN life {_TEXT} NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN life {_TEXT} NOT NULL DEFAULT '';
ALTER TABLE counts ADD COLUMN life {_TEXT} NOT NULL DEFAULT '', DROP CONSTRAINT counts_pkey,
    ADD PRIMARY KEY (span, begins_at, receiver, source_id, life);
UPDATE version SET number = {VERSION};
"""
HAS_NUMBER: Final = (
    f"SELECT EXISTS (SELECT 1 FROM pg_attribute WHERE attrelid = '{SCHEMA}.deliveries'::regclass"
    " AND attname = 'number' AND NOT attisdropped)"
)
ADD_NUMBER: Final = f"ALTER TABLE {SCHEMA}.deliveries ADD COLUMN number bigint"
"""Added without a new version, as older releases go on with this table, too."""
HAS_NUMBERS: Final = (
    "SELECT EXISTS (SELECT 1 FROM pg_index"
    f" WHERE indexrelid = to_regclass('{SCHEMA}.deliveries_number') AND indisvalid)"
)
DROP_NUMBERS: Final = f"DROP INDEX IF EXISTS {SCHEMA}.deliveries_number"
"""Drops one whose build was interrupted: it is not valid."""
INDEX_NUMBERS: Final = (
    f"CREATE INDEX CONCURRENTLY deliveries_number ON {SCHEMA}.deliveries (receiver, number) WHERE number > 0"
)
STAGING: Final = "".join(
    f"CREATE TEMPORARY TABLE new_{table} (LIKE {table}) ON COMMIT DELETE ROWS;" for table in STAGED
)


def day_of(moment: float, now: float) -> int | None:
    """The day (UTC, counted since 1970) of a time near now; None if it belongs to the default partition."""
    day, today = int(moment // DAY_S), int(now // DAY_S)
    return day if today - DAYS_BACK <= day <= today + DAYS_AHEAD else None


def partition_name(table: str, day: int) -> str:
    return f"{table}_{day}"


def day_of_partition(name: str) -> int | None:
    """The reverse of `partition_name`; None for the default partition."""
    number = name.rpartition("_")[2]
    return int(number) if number.isdecimal() else None


def create_partition(table: str, day: int) -> str:
    begin, end = (float(each * DAY_S) for each in (day, day + 1))
    name = partition_name(table, day)
    return f"CREATE TABLE IF NOT EXISTS {name} PARTITION OF {table} FOR VALUES FROM ({begin!r}) TO ({end!r})"
