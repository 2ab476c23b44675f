-- Writing finished rows.
local FULL = 64 -- rows a bucket on average; a bucket about to be split has twice as many, still a listpack
local EXACT = 256 -- rows of a table that are counted one by one; beyond that,
local SAMPLE = 16 -- one in so many stands for all: a write less for each of the others
local EMPTY = { '', '' }

-- To be called at the end of a script that may have changed them.
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

-- Makes a hash that expires with its table. A bucket is made by the split that adds it, if need be with an empty
-- field: so an HSET need not ask whether it made the hash, and left it without an end.
local function make_hash(t, key, fields)
  in_chunks('HSET', key, fields)
  call('PEXPIRE', key, t.expires - now)
end

-- Secret is what only this server and its clients know: its run, and the name of the pass that made it ready.
local function new_key(name)
  local hex = redis.sha1hex(T.life .. name)
  local key = {}
  for i = 1, 4 do
    key[i] = tonumber(string.sub(hex, 6 * i - 5, 6 * i), 16)
  end
  return key
end

-- A row lives until the end of the second half window after its own: 1 to 1.5 windows. Where the clock went back over
-- the end of a half window, the newer table stays the current one: rows may not be hidden by older ones.
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

-- Bucket b - m becomes buckets b - m and b. Wherever that ends early, each row is where it is looked for: a row is added
-- first, then `tables` leads there, then it is removed; and a repeat finds nothing changed.
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
    if bucket == added then -- one of neither is left of a split that ended early
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

-- By chance, not by digests: senders choose those.
local function is_sample(digest)
  T.sampled = (T.sampled or now_us + string.byte(digest, -1)) + 1
  return T.sampled % SAMPLE == 0
end

local function count_row(t, key, digest)
  if t.n < EXACT then
    t.n = t.n + 1
  elseif is_sample(digest) then
    t.n = t.n + SAMPLE
    call('PEXPIRE', key, t.expires - now) -- heals a bucket that somebody deleted by hand
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

-- The value that was there; nil: there was none, and `value` is kept now. To write at once and ask only then is a
-- command less for what is new.
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
