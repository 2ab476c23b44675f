"""Data model of the log in Valkey, and the scripts that change it. A script is atomic, also on disk.

Of a topic that is not compacted, a partition is a stream: the record with offset n has the id `(n+1)-0` (0-0 is no
id), so offsets are dense as on Kafka. Of a compacted one it is a hash by key; its partition 0 has beside it a stream
of changes, which holds no payload and lets followers see updates and tombstones.

    {prefix}log:topics            hash  topic -> TopicSpec as JSON
    {prefix}log:ends              hash  <topic>/<partition> -> the offset that its next record gets
    {prefix}log:records:<t>/<p>   stream {t: Unix ms, r: packed record}, or hash key -> offset, Unix ms, packed record
    {prefix}log:changes:<t>/0     stream {t: Unix ms, k: key, d: "1" for a tombstone}
    {prefix}log:offsets:<topic>   hash  <partition>/<group> -> the group's next offset
    {prefix}log:epochs:<topic>    hash  <partition>/<group> -> epoch of its newest owner
"""

from itertools import accumulate
from typing import Final

import msgspec

from relay.log.port import Flaw, Headers, NewRecord, Record, TopicPartition

FIXED_DIGITS: Final = 16
"""Number of digits to which the offset and the time before a packed record in a hash are padded."""

CHANGES_KEPT: Final = 4096
"""Changes that stay for followers that are just starting; those known to be behind keep more."""


class StreamKeys:
    """Names of keys and fields."""

    def __init__(self, prefix: str) -> None:
        self._prefix = f"{prefix}log"
        self.topics = f"{self._prefix}:topics"
        self.ends = f"{self._prefix}:ends"

    def records(self, partition: TopicPartition) -> str:
        return f"{self._prefix}:records:{partition}"

    def changes(self, partition: TopicPartition) -> str:
        return f"{self._prefix}:changes:{partition}"

    def offsets(self, topic: str) -> str:
        return f"{self._prefix}:offsets:{topic}"

    def epochs(self, topic: str) -> str:
        return f"{self._prefix}:epochs:{topic}"


def partition_of_field(field: bytes) -> TopicPartition:
    topic, _, number = field.decode().rpartition("/")
    return TopicPartition(topic, int(number))


def group_field(partition: int, group: str) -> str:
    return f"{partition}/{group}"


# records

Packed = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers of a record."""

Entry = tuple[bytes, tuple[bytes, bytes, bytes, bytes]]
"""An entry of a stream: its id, and its fields with their values."""

_decode = msgspec.msgpack.Decoder(Packed).decode
_decode_lengths = msgspec.msgpack.Decoder(list[int]).decode
_encode = msgspec.msgpack.Encoder().encode


def pack(record: NewRecord) -> bytes:
    return _encode((record.key, record.value, record.headers))


def from_entry(at: TopicPartition, entry: Entry) -> Record:
    entry_id, (_, at_ms, _, packed) = entry
    offset = int(entry_id[: entry_id.index(b"-")]) - 1
    return _unpacked(at, offset, int(at_ms), packed)


def from_value(at: TopicPartition, value: bytes) -> Record:
    offset, at_ms = int(value[:FIXED_DIGITS]), int(value[FIXED_DIGITS : 2 * FIXED_DIGITS])
    return _unpacked(at, offset, at_ms, memoryview(value)[2 * FIXED_DIGITS :])


def from_values(at: TopicPartition, lengths: bytes, values: bytes) -> list[Record]:
    """`lengths`: as MessagePack, of the hash values that `values` has one behind the other."""
    ends = list(accumulate(_decode_lengths(lengths)))
    return [from_value(at, values[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def _unpacked(at: TopicPartition, offset: int, at_ms: int, packed: bytes | memoryview) -> Record:
    try:
        key, value, headers = _decode(packed)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        detail = f"offset {offset} is skipped in {at}: {error}"
        return Record(at.topic, at.partition, offset, None, None, (), at_ms, Flaw("invalid", detail, offset))
    return Record(at.topic, at.partition, offset, key, value, headers, at_ms)


def tombstone(at: TopicPartition, offset: int, at_ms: int, key: bytes) -> Record:
    return Record(at.topic, at.partition, offset, key, None, (), at_ms)


# scripts

# KEYS: topics. ARGV: topic, number of partitions, its spec with so many. Nothing happens where it has as many, or more.
GROW_TOPIC: Final = """
local spec = redis.call('HGET', KEYS[1], ARGV[1])
if spec and cjson.decode(spec).partitions < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
end
return 0
"""

# KEYS: ends; then per partition: records, changes. ARGV: per partition: field of ends, "delete" or "compact", floor of
# the changes to keep (-1: no follower), number of records; then per record: key ("" where not compacted), packed record
# ("": tombstone of a compacted topic). Returns the first offset per partition.
APPEND: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local at, firsts = 0, {}
local function nextarg() at = at + 1; return ARGV[at] end
for k = 2, #KEYS, 2 do
  local records, changes = KEYS[k], KEYS[k + 1]
  local field, cleanup, floor, count = nextarg(), nextarg(), tonumber(nextarg()), tonumber(nextarg())
  local stop = redis.call('HINCRBY', KEYS[1], field, count)
  firsts[#firsts + 1] = stop - count
  for offset = stop - count, stop - 1 do
    local id = string.format('%.0f-0', offset + 1)
    local key, packed = nextarg(), nextarg()
    if cleanup == 'delete' then
      redis.call('XADD', records, id, 't', now, 'r', packed)
    else
      if packed == '' then
        redis.call('HDEL', records, key)
      else
        redis.call('HSET', records, key, string.format('%016.0f%016.0f', offset, now) .. packed)
      end
      if changes ~= '' then
        redis.call('XADD', changes, id, 't', now, 'k', key, 'd', packed == '' and '1' or '')
      end
    end
  end
  if cleanup == 'compact' and changes ~= '' then
    local keep = stop - CHANGES_KEPT
    if floor >= 0 and floor < keep then keep = floor end
    if keep > 0 then redis.call('XTRIM', changes, 'MINID', '~', string.format('%.0f-0', keep + 1)) end
  end
end
return firsts
""".replace("CHANGES_KEPT", str(CHANGES_KEPT))

# KEYS: ends; then streams. ARGV: most records, bytes to stop at; then per stream: field of ends, offset. Returns per
# stream 1 if the record at that offset was removed, or the offset is behind the end, and the entries. Takes from the
# streams in their order.
FETCH: Final = """
local left, bytes, out = tonumber(ARGV[1]), tonumber(ARGV[2]), {}
for k = 2, #KEYS do
  local position = tonumber(ARGV[2 * k])
  local stop = tonumber(redis.call('HGET', KEYS[1], ARGV[2 * k - 1]) or 0)
  local found, missing, some = {}, position > stop and 1 or 0, 1
  while missing == 0 and position < stop and left > 0 and bytes > 0 do
    local from = string.format('%.0f-0', position + 1)
    local entries = redis.call('XRANGE', KEYS[k], from, '+', 'COUNT', math.min(left, some))
    if #entries == 0 or entries[1][1] ~= from then missing = 1; break end
    local size = 0
    for _, entry in ipairs(entries) do
      found[#found + 1] = entry
      size = size + #entry[2][4]
    end
    bytes = bytes - size
    -- As many as fit if they are as large as these, and not many more than there were: they may be larger.
    some = math.max(1, math.min(64, 4 * #entries, math.floor(bytes * #entries / size)))
    left = left - #entries
    position = position + #entries
  end
  out[#out + 1] = {missing, found}
end
return out
"""

# KEYS: records, per wanted record. ARGV: per wanted record: "delete" and its offset, or "compact" and its key. Returns
# per wanted record its entry, or its hash value, or false.
READ: Final = """
local out = {}
for n = 1, #KEYS do
  if ARGV[2 * n - 1] == 'delete' then
    local id = string.format('%.0f-0', tonumber(ARGV[2 * n]) + 1)
    out[n] = redis.call('XRANGE', KEYS[n], id, id)[1] or false
  else
    out[n] = redis.call('HGET', KEYS[n], ARGV[2 * n])
  end
end
return out
"""

# KEYS: ends, then records (streams). ARGV: their fields of ends. Returns of each the first offset that is still there,
# and the end.
SPANS: Final = """
local found = {}
for n = 2, #KEYS do
  local stop = tonumber(redis.call('HGET', KEYS[1], ARGV[n - 1]) or 0)
  local first = redis.call('XRANGE', KEYS[n], '-', '+', 'COUNT', 1)[1]
  found[#found + 1] = {first and tonumber(string.match(first[1], '^%d+')) - 1 or stop, stop}
end
return found
"""

# KEYS: ends, records (a hash), changes. ARGV: field of ends, offset, most changes, bytes to stop at. Returns 1 if the
# change at that offset was removed, the offset behind what was looked at, and of the keys that changed there and not
# again since: {offset, Unix ms, key, hash value or false}.
CHANGES: Final = """
local position = tonumber(ARGV[2])
if position >= tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0) then return {0, position, {}} end
local from = string.format('%.0f-0', position + 1)
local entries = redis.call('XRANGE', KEYS[3], from, '+', 'COUNT', ARGV[3])
if #entries == 0 or entries[1][1] ~= from then return {1, position, {}} end
local found, bytes = {}, tonumber(ARGV[4])
for _, entry in ipairs(entries) do
  if bytes <= 0 then break end
  local key, tombstone = entry[2][4], entry[2][6] == '1'
  local value = redis.call('HGET', KEYS[2], key)
  local newest = value and tonumber(string.sub(value, 1, 16)) == position
  if newest or (tombstone and not value) then found[#found + 1] = {position, entry[2][2], key, value} end
  if newest then bytes = bytes - #value end
  position = position + 1
end
return {0, position, found}
"""

# KEYS: records (a hash). ARGV: cursor, how many. Returns the next cursor ("0": there are no more), the lengths of some
# hash values as MessagePack, and these behind each other: two long strings cost a client less than thousands.
PAGE: Final = """
local found = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local values, lengths = {}, {}
for n = 2, #found[2], 2 do
  values[n / 2] = found[2][n]
  lengths[n / 2] = #found[2][n]
end
return {found[1], cmsgpack.pack(lengths), table.concat(values)}
"""

# KEYS: records (a hash). ARGV: cursor, how many. Returns the next cursor ("0": there are no more), and of some records
# the offset, padded, with the key behind it.
INDEX: Final = """
local found, entries = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2], 'NOVALUES'), {}
for n, key in ipairs(found[2]) do entries[n] = string.sub(redis.call('HGET', KEYS[1], key), 1, 16) .. key end
return {found[1], entries}
"""

# KEYS: records (a hash). ARGV: bytes to stop at; then entries as INDEX returns them. Returns how many were looked at,
# and as PAGE does the hash values of those that are still there, unchanged.
VALUES: Final = """
local left, values, lengths, looked = tonumber(ARGV[1]), {}, {}, 0
while looked + 2 <= #ARGV and left > 0 do
  local entry = ARGV[looked + 2]
  local value = redis.call('HGET', KEYS[1], string.sub(entry, 17))
  if value and string.sub(value, 1, 16) == string.sub(entry, 1, 16) then
    values[#values + 1] = value
    lengths[#values] = #value
    left = left - #value
  end
  looked = looked + 1
end
return {looked, cmsgpack.pack(lengths), table.concat(values)}
"""

# KEYS: per partition: offsets, epochs. ARGV: per partition: field, and that of the group whose offset is taken over
# where there is none (the same: of none). Returns per partition: epoch, next offset or false.
TAKE: Final = """
local out = {}
for n = 1, #KEYS / 2 do
  local offsets, epochs, field, former = KEYS[2 * n - 1], KEYS[2 * n], ARGV[2 * n - 1], ARGV[2 * n]
  local left = field ~= former and redis.call('HGET', offsets, former)
  if left and redis.call('HEXISTS', offsets, field) == 0 then
    redis.call('HSET', offsets, field, left)
    local highest = tonumber(redis.call('HGET', epochs, former) or 0)
    if highest > tonumber(redis.call('HGET', epochs, field) or 0) then redis.call('HSET', epochs, field, highest) end
    redis.call('HDEL', offsets, former)
  end
  out[n] = {redis.call('HINCRBY', epochs, field, 1), redis.call('HGET', offsets, field)}
end
return out
"""

# KEYS: per partition: offsets, epochs. ARGV: per partition: field, epoch, next offset. Returns the number of the first
# partition (1-based) that has a newer owner, and then changes nothing; else 0.
COMMIT: Final = """
for n = 1, #KEYS / 2 do
  if redis.call('HGET', KEYS[2 * n], ARGV[3 * n - 2]) ~= ARGV[3 * n - 1] then return n end
end
for n = 1, #KEYS / 2 do
  redis.call('HSET', KEYS[2 * n - 1], ARGV[3 * n - 2], ARGV[3 * n])
end
return 0
"""

# KEYS: offsets, ends; then the records of each partition, 0 first. ARGV: group, topic, cleanup. Puts the
# group at the first record that is still there, wherever it has no offset.
BEGIN_GROUP: Final = """
for k = 3, #KEYS do
  local partition = k - 3
  local first = 0
  if ARGV[3] == 'delete' then
    local entries = redis.call('XRANGE', KEYS[k], '-', '+', 'COUNT', 1)
    if #entries > 0 then
      first = tonumber(string.match(entries[1][1], '^%d+')) - 1
    else
      first = redis.call('HGET', KEYS[2], ARGV[2] .. '/' .. partition) or 0
    end
  end
  redis.call('HSETNX', KEYS[1], partition .. '/' .. ARGV[1], first)
end
return 0
"""

# KEYS: ends, records, offsets. ARGV: field of ends, partition, retention in ms, groups that nothing is kept for.
# Removes records that are older than the retention and lie before every other group's offset. Times grow with offsets,
# so the first young one is found by bisection. Returns the first offset kept.
TRIM: Final = """
local clock = redis.call('TIME')
local cutoff = clock[1] * 1000 + math.floor(clock[2] / 1000) - tonumber(ARGV[3])
local first = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', 1)
if #first == 0 then return 0 end
local low = tonumber(string.match(first[1][1], '^%d+')) - 1
local high = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
local offsets = redis.call('HGETALL', KEYS[3])
local mine, passed = ARGV[2] .. '/', {}
for n = 4, #ARGV do passed[mine .. ARGV[n]] = true end
for n = 1, #offsets, 2 do
  if string.sub(offsets[n], 1, #mine) == mine and not passed[offsets[n]] then
    high = math.min(high, tonumber(offsets[n + 1]))
  end
end
while low < high do
  local middle = math.floor((low + high) / 2)
  local id = string.format('%.0f-0', middle + 1)
  local entry = redis.call('XRANGE', KEYS[2], id, id)[1]
  if tonumber(entry[2][2]) < cutoff then low = middle + 1 else high = middle end
end
redis.call('XTRIM', KEYS[2], 'MINID', string.format('%.0f-0', low + 1))
return low
"""
