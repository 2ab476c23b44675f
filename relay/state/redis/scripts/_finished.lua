-- Writes finished rows.
local FULL = 64 -- average rows per bucket; a bucket before its split has twice as many, still a listpack
local EXACT = 256 -- up to this many rows of a table are counted exactly; beyond that,
local SAMPLE = 16 -- only one in this many is counted, which saves a write for each of the others
local EMPTY = { '', '' }

-- Call at the end of a script that may have changed tables.
local function save_tables()
  if not T.unsaved then
    return
  end
  local entries = {}
  for i, t in ipairs(T.tables) do
    entries[i] = struct.pack(ENTRY, t.half, t.period, t.b, t.n)
    if T.keyed then
      entries[i] = entries[i] .. struct.pack(KEY, unpack(t.key or { 0, 0, 0, 0 }))
    end
  end
  call('SET', P .. 'tables', (T.keyed and KEYED or '') .. table.concat(entries))
  T.unsaved = false
end

-- Creates a hash that expires with its table. A bucket is created by the split that adds it, with an empty field if
-- necessary: so no HSET has to check whether it created the hash without an expiry.
local function make_hash(t, key, fields)
  in_chunks('HSET', key, fields)
  call('PEXPIRE', key, t.expires - now)
end

-- The key is derived from values that only this server and its clients know: its run, and the name of the recovery pass.
local function new_key(name)
  local hex = redis.sha1hex(T.life .. name)
  local key = {}
  for i = 1, 4 do
    key[i] = tonumber(string.sub(hex, 6 * i - 5, 6 * i), 16)
  end
  return key
end

-- A row is kept until the end of the second half window after its own: 1 to 1.5 windows. If the clock went back over the
-- end of a half window, the newer table stays current, because older tables must not hide rows.
local function current_table()
  local tables, period = live_tables(), math.floor(now / HALF)
  local newest = tables[1]
  if newest and fits(newest) and (newest.period == period or newest.period == period + 1) then
    return newest
  end
  local t = new_table(HALF, period, 1, 0, T.keyed and new_key(HALF .. '.' .. period) or nil)
  for i, old in ipairs(tables) do
    if fits(old) and old.period == period then
      t = table.remove(tables, i)
      break
    end
  end
  table.insert(tables, 1, t)
  make_hash(t, t.buckets .. 0, EMPTY)
  T.unsaved = true
  return t
end

-- Splits bucket b - m into buckets b - m and b. Wherever this is interrupted, each row can be found: it is added first,
-- then `tables` is updated, then it is removed; a repeated split changes nothing.
local function split(t)
  local added, source = t.b, t.b - t.m
  t.b = added + 1
  if t.b == 2 * t.m then
    t.m = t.b
  end
  local rows, moved, gone, kept = call('HGETALL', t.buckets .. source), {}, {}, false
  for i = 1, #rows, 2 do
    local bucket = rows[i] ~= '' and bucket_of(t, rows[i])
    if bucket == source then
      kept = true
    elseif bucket then
      gone[#gone + 1] = rows[i]
    end
    if bucket == added then -- other rows are left over from an interrupted split
      moved[#moved + 1] = rows[i]
      moved[#moved + 1] = rows[i + 1]
    end
  end
  make_hash(t, t.buckets .. added, #moved > 0 and moved or EMPTY)
  T.unsaved = true
  save_tables()
  if not kept then
    make_hash(t, t.buckets .. source, EMPTY)
  end
  in_chunks('HDEL', t.buckets .. source, gone)
end

-- Random, not by digest, because senders choose the digests.
local function is_sample(digest)
  T.sampled = (T.sampled or now_us + string.byte(digest, -1)) + 1
  return T.sampled % SAMPLE == 0
end

local function count_row(t, key, digest)
  if t.n < EXACT then
    t.n = t.n + 1
  elseif is_sample(digest) then
    t.n = t.n + SAMPLE
    call('PEXPIRE', key, t.expires - now) -- repairs a bucket that was deleted manually
  else
    return
  end
  T.unsaved = true
  if t.n > FULL * t.b then
    split(t)
  end
end

local function keep_finished(digest, value)
  local t = current_table()
  local key = t.buckets .. bucket_of(t, digest)
  if call('HSET', key, digest, value) == 1 then
    count_row(t, key, digest)
  end
end

-- The existing value; nil if there was none, and `value` is stored now. Writing first and reading only if necessary saves
-- a command for new rows.
local function find_or_keep(digest, value)
  local t = current_table()
  local key = t.buckets .. bucket_of(t, digest)
  if call('HSETNX', key, digest, value) == 0 then
    return call('HGET', key, digest)
  end
  count_row(t, key, digest)
  local older = find_finished(digest, 2)
  if older then
    keep_finished(digest, older)
  end
  return older
end
