-- Finished rows: 12-byte digest -> at most 16 bytes, in hashes small enough to stay listpacks, which expire whole.
-- One table per half window; its number of buckets grows by linear hashing, so that buckets are well filled whatever
-- the traffic. `tables` remembers every live table, newest first, so that a changed window loses nothing.
local HALF = math.floor(WINDOW / 2)
local ENTRY = '>I6I6I4I6'
local CHUNK = 1000 -- rows a command: Lua's stack has room for some thousand values

local function new_table(half, period, b, n)
  local _, exponent = math.frexp(b)
  local m = 2 ^ (exponent - 1) -- the highest power of two that is not above b
  local name = half .. '.' .. period
  return {
    name = name, half = half, period = period, b = b, n = n, m = m, expires = (period + 3) * half,
    buckets = P .. 'f:' .. name .. ':',
  }
end

local function live_tables()
  local tables = T.tables
  if not tables then
    tables = {}
    local stored = T.stored_tables or call('GET', P .. 'tables') or ''
    for at = 1, #stored, 22 do
      local t = new_table(struct.unpack(ENTRY, stored, at))
      if t.expires > now then
        tables[#tables + 1] = t
      end
    end
    T.tables = tables
  end
  return tables
end

-- Beside each table the hash of the rows that are not finished.
local function unfinished_of(t)
  return P .. 'u:' .. t.name
end

local function bucket_of(t, digest)
  local i = struct.unpack('>I4', digest) % (2 * t.m)
  return i < t.b and i or i - t.m
end

-- nil: there is none. `first`: the newest table to look in.
local function find_finished(digest, first)
  local tables = live_tables()
  for i = first or 1, #tables do
    local t = tables[i]
    local value = call('HGET', t.buckets .. bucket_of(t, digest), digest)
    if value then
      return value
    end
  end
  return nil
end
