-- Rows of deliveries and callbacks. An unfinished one is one string, a MessagePack map:
--   s stage, g generation, a attempts, p polls, u due (ms), l last status, e reason, r result, x/y partition and offset,
--   k token of the attempt under way, t its begin (ms), w its slot (us), b/v stage and begin before it,
--   q token of the last poll, z tokens already settled
-- A finished one (f) is kept by _finished.lua.
local NONE, ENQUEUED, SENDING, ACCEPTED, AWAITING, RESULT, PUBLISHED, DONE, FAILED = 0, 2, 3, 4, 5, 6, 7, 8, 9
local STUB_MS = 60000 -- how long a repeat by the client library may be late
local WITH_GENERATION, WITH_STATUS, WITH_CODE = 16, 64, 128

local function pack_done(row)
  local flags, at = pack_at(row.x or -1, row.y or -1)
  local parts = { '' }
  flags = flags + row.s
  if row.g > 0 then
    flags = flags + WITH_GENERATION
    parts[#parts + 1] = struct.pack('>I2', math.min(row.g, 65535))
  end
  parts[#parts + 1] = struct.pack('B', math.min(row.a, 255))
  if row.l and row.l >= 0 then
    flags = flags + WITH_STATUS
    parts[#parts + 1] = struct.pack('>I2', row.l)
  end
  if row.c > 0 then
    flags = flags + WITH_CODE
    parts[#parts + 1] = struct.pack('B', row.c)
  end
  parts[1] = struct.pack('B', flags)
  parts[#parts + 1] = at
  return table.concat(parts)
end

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function unpack_done(value)
  local flags, pos = struct.unpack('B', value)
  local row = { f = true, s = flags % 16, g = 0, p = 0, c = 0 }
  if has(flags, WITH_GENERATION) then
    row.g, pos = struct.unpack('>I2', value, pos)
  end
  row.a, pos = struct.unpack('B', value, pos)
  if has(flags, WITH_STATUS) then
    row.l, pos = struct.unpack('>I2', value, pos)
  end
  if has(flags, WITH_CODE) then
    row.c, pos = struct.unpack('B', value, pos)
  end
  local partition, offset = unpack_at(flags, value, pos)
  if partition >= 0 then
    row.x, row.y = partition, offset
  end
  return row
end

local function load_row(digest)
  local value = call('GET', P .. 'r:' .. digest)
  if value then
    return cmsgpack.unpack(value)
  end
  value = find_finished(digest)
  return value and unpack_done(value)
end

local function store_row(digest, row)
  call('SET', P .. 'r:' .. digest, cmsgpack.pack(row), 'PX', row.s == NONE and row.p == 0 and STUB_MS or WINDOW)
end

local function fresh_row(generation)
  return { s = NONE, g = generation, a = 0, p = 0 }
end

local function was_settled(row, token)
  for _, one in ipairs(row.z or {}) do
    if one == token then
      return true
    end
  end
  return false
end

local any_intent

local function has_intent(digest)
  if any_intent == nil then
    any_intent = call('EXISTS', P .. 'i') == 1
  end
  return any_intent and call('HEXISTS', P .. 'i', digest) == 1
end

-- A row for the reply; 0 where there is nothing to tell.
local function shown(digest, row, kept, behind)
  local flags = (has_intent(digest) and 1 or 0) + (kept and 2 or 0) + (behind and 4 or 0)
  if not row or row.s == NONE then
    return flags == 0 and 0 or { NONE, flags }
  end
  local left = row.u and math.max(0, row.u - now) or 0
  local at = row.s >= PUBLISHED
  return {
    row.s, flags, row.g, row.a, row.p, left, row.l or -1, row.e or '',
    at and row.x or -1, at and row.y or -1, row.c or 0, row.r or '',
  }
end
