-- Finished rows: 12-byte digest -> at most 16 bytes, in hashes small enough to stay listpacks, which expire as a whole.
-- One table per half window; its number of buckets grows by linear hashing, so that buckets are well filled with any
-- traffic. `tables` lists every live table, newest first, so that a changed window loses nothing.
-- A table with a key, four secret numbers, finds the bucket of a digest by a universal hash: senders choose the digests,
-- but cannot choose digests of the same bucket. Release 0.1 has no keys: new tables get one only if `tables` begins with
-- KEYED, and each entry ends with its key, zeros for none. A script of that release then fails without changes.
local HALF = math.floor(WINDOW / 2)
local ENTRY, SIZE = '>I6I6I4I6', 22
local KEY, KEY_SIZE = '>I3I3I3I3', 12
local KEYED = '\2' -- the other form begins with 0: no half window is as long as 2^40 ms
local PRIME = 16777259 -- the first above 2^24: a sum of four products is far below 2^53, up to which Lua numbers are exact
local CHUNK = 1000 -- rows per command: Lua's stack has room for some thousand values

local function in_chunks(command, key, values)
  for first = 1, #values, 2 * CHUNK do
    call(command, key, unpack(values, first, math.min(first + 2 * CHUNK - 1, #values)))
  end
end

-- `key`: four numbers below 2^24, or nil.
local function new_table(half, period, b, n, key)
  local _, exponent = math.frexp(b)
  local m = 2 ^ (exponent - 1) -- the highest power of two that is not above b
  local name = half .. '.' .. period .. (key and 'k' or '')
  return {
    name = name, half = half, period = period, b = b, n = n, m = m, expires = (period + 3) * half,
    buckets = P .. 'f:' .. name .. ':', key = key,
  }
end

local function live_tables()
  local tables = T.tables
  if not tables then
    tables = {}
    local stored = T.stored_tables or call('GET', P .. 'tables') or ''
    T.keyed = string.sub(stored, 1, 1) == KEYED
    for at = T.keyed and 2 or 1, #stored, T.keyed and SIZE + KEY_SIZE or SIZE do
      local half, period, b, n, after = struct.unpack(ENTRY, stored, at)
      local key = T.keyed and { struct.unpack(KEY, stored, after) } or nil
      local t = new_table(half, period, b, n, key and key[1] + key[2] + key[3] + key[4] > 0 and key or nil)
      if t.expires > now then
        tables[#tables + 1] = t
      end
    end
    T.tables = tables
  end
  return tables
end

-- The hash of unfinished rows beside a table.
local function unfinished_of(t)
  return P .. 'u:' .. t.name
end

-- Whether new rows may be stored in the table during its half window.
local function fits(t)
  return t.half == HALF and (t.key ~= nil or not T.keyed)
end

-- The hash of a digest, below PRIME.
local function hash_of(key, digest)
  local a, b, c, d = struct.unpack(KEY, digest)
  return (a * key[1] + b * key[2] + c * key[3] + d * key[4]) % PRIME
end

local function bucket_of(t, digest)
  local i = (t.key and hash_of(t.key, digest) or struct.unpack('>I4', digest)) % (2 * t.m)
  return i < t.b and i or i - t.m
end

-- The finished row; nil if there is none. `first`: the newest table to search.
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
