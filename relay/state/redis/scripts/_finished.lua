-- Writing finished rows.
local FULL = 64 -- rows a bucket on average; a bucket about to be split has twice as many, still a listpack
local EXACT = 256 -- rows of a table that are counted one by one; beyond that,
local SAMPLE = 16 -- one in so many stands for all: a write less for each of the others

-- To be called at the end of a script that may have changed them.
local function save_tables()
  if T.unsaved then
    local entries = {}
    for i, t in ipairs(T.tables) do
      entries[i] = struct.pack(ENTRY, t.half, t.period, t.b, t.n)
    end
    call('SET', P .. 'tables', table.concat(entries))
  end
end

-- Makes a hash that expires with its table. A bucket is made by the split that adds it, if need be with an empty
-- field: so an HSET need not ask whether it made the hash, and left it without an end.
local function make_hash(t, key, ...)
  call('HSET', key, ...)
  call('PEXPIRE', key, t.expires - now)
end

-- A row lives until the end of the second half window after its own: 1 to 1.5 windows. Where the clock went back over
-- the end of a half window, the newer table stays the current one: rows may not be hidden by older ones.
local function current_table()
  local tables, period = live_tables(), math.floor(now / HALF)
  local newest = tables[1]
  if newest and newest.half == HALF and (newest.period == period or newest.period == period + 1) then
    return newest
  end
  local t = new_table(HALF, period, 1, 0)
  for i, old in ipairs(tables) do
    if old.half == HALF and old.period == period then
      t = table.remove(tables, i)
      break
    end
  end
  table.insert(tables, 1, t)
  make_hash(t, t.buckets .. 0, '', '')
  T.unsaved = true
  return t
end

-- Bucket b - m becomes buckets b - m and b. Writing both anew is cheaper than deleting from a listpack one by one.
local function split(t)
  local added, source = t.b, t.b - t.m
  t.b = added + 1
  if t.b == 2 * t.m then
    t.m = t.b
  end
  local rows, parts = call('HGETALL', t.buckets .. source), { [source] = {}, [added] = {} }
  for i = 1, #rows, 2 do
    if rows[i] ~= '' then
      local part = parts[bucket_of(t, rows[i])]
      part[#part + 1] = rows[i]
      part[#part + 1] = rows[i + 1]
    end
  end
  call('DEL', t.buckets .. source)
  for bucket, part in pairs(parts) do
    if #part == 0 then
      part = { '', '' }
    end
    make_hash(t, t.buckets .. bucket, unpack(part))
  end
end

local function count_row(t, key, digest)
  if t.n < EXACT then
    t.n = t.n + 1
  elseif string.byte(digest, -1) % SAMPLE == 0 then
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
