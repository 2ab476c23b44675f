-- Finished rows: 12-byte digest -> at most 16 bytes, in hashes small enough to stay listpacks, which expire whole.
-- One table per half window; its number of buckets grows by linear hashing, so that buckets are well filled whatever
-- the traffic. `tables` remembers every live table, so that a changed window loses nothing.
local HALF = math.floor(WINDOW / 2)
local FULL = 64 -- rows a bucket on average; a bucket about to be split has twice as many, still a listpack
local tables

local function highest_power(b)
  local m = 1
  while m * 2 <= b do
    m = m * 2
  end
  return m
end

local function load_tables()
  tables = {}
  local raw = call('HGETALL', P .. 'tables')
  for i = 1, #raw, 2 do
    local b, n, expires, made = struct.unpack('>I4I6I7I7', raw[i + 1])
    if expires > now then
      tables[#tables + 1] = { name = raw[i], b = b, n = n, m = highest_power(b), expires = expires, made = made }
    else
      call('HDEL', P .. 'tables', raw[i])
    end
  end
  table.sort(tables, function(x, y) return x.made > y.made end)
end

local function save_table(t)
  call('HSET', P .. 'tables', t.name, struct.pack('>I4I6I7I7', t.b, t.n, t.expires, t.made))
  t.dirty = false
end

local function bucket_of(t, digest)
  local i = struct.unpack('>I4', digest) % (2 * t.m)
  return i < t.b and i or i - t.m
end

local function bucket_key(t, digest)
  return P .. 'f:' .. t.name .. ':' .. bucket_of(t, digest)
end

-- A row lives until the end of the second half window after its own: 1 to 1.5 windows.
local function current_table()
  local period = math.floor(now / HALF)
  local name = HALF .. '.' .. period
  for _, t in ipairs(tables) do
    if t.name == name then
      return t
    end
  end
  local t = { name = name, b = 1, n = 0, m = 1, expires = (period + 3) * HALF, made = now }
  table.insert(tables, 1, t)
  save_table(t)
  return t
end

-- Bucket b - m becomes buckets b - m and b. Writing both anew is cheaper than deleting from a listpack one by one.
local function split(t)
  local added, source = t.b, t.b - t.m
  t.b = added + 1
  if t.b == 2 * t.m then
    t.m = t.b
  end
  save_table(t)
  local key = P .. 'f:' .. t.name .. ':'
  local rows, parts = call('HGETALL', key .. source), { [source] = {}, [added] = {} }
  for i = 1, #rows, 2 do
    local part = parts[bucket_of(t, rows[i])]
    part[#part + 1] = rows[i]
    part[#part + 1] = rows[i + 1]
  end
  call('DEL', key .. source)
  for bucket, part in pairs(parts) do
    if #part > 0 then
      call('HSET', key .. bucket, unpack(part))
      call('PEXPIRE', key .. bucket, t.expires - now)
    end
  end
end

local function find_finished(digest)
  if not tables then
    load_tables()
  end
  for _, t in ipairs(tables) do
    local value = call('HGET', bucket_key(t, digest), digest)
    if value then
      return value
    end
  end
  return nil
end

local function keep_finished(digest, value)
  if not tables then
    load_tables()
  end
  local t = current_table()
  local key = bucket_key(t, digest)
  if call('HSET', key, digest, value) == 0 then
    return
  end
  if call('HLEN', key) == 1 then
    call('PEXPIRE', key, t.expires - now)
  end
  t.n = t.n + 1
  t.dirty = true
  if t.n > FULL * t.b then
    split(t)
  end
end

-- To be called at the end of a script that kept rows.
local function save_tables()
  for _, t in ipairs(tables or {}) do
    if t.dirty then
      save_table(t)
    end
  end
end

-- A coordinate in as few bytes as it needs; `wide` is the flag that its first byte is followed by a second one.
local WIDE = 32

local function pack_at(partition, offset)
  if partition < 0 then
    return 0, ''
  end
  local bytes = 1
  while offset >= 256 ^ bytes do
    bytes = bytes + 1
  end
  if partition > 255 then
    return WIDE, struct.pack('>I2I' .. bytes, partition, offset)
  end
  return 0, struct.pack('>I1I' .. bytes, partition, offset)
end

local function unpack_at(flags, value, start)
  if start > #value then
    return -1, -1
  end
  local wide = math.floor(flags / WIDE) % 2
  local partition, rest = struct.unpack(wide == 1 and '>I2' or '>I1', value, start)
  return partition, (struct.unpack('>I' .. (#value - rest + 1), value, rest))
end
