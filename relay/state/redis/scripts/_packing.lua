-- Converts rows of any kind to strings and back.
local function unpack_at(flags, value, start)
  if start > #value then
    return -1, -1
  end
  local wide = math.floor(flags / WIDE) % 2
  local partition, rest = struct.unpack(wide == 1 and '>I2' or '>I1', value, start)
  return partition, (struct.unpack('>I' .. (#value - rest + 1), value, rest))
end

local function pack_outcome(row, token)
  local flag, tail = 0, row.r or ''
  if row.s == PUBLISHED then
    flag, tail = pack_at(row.x or -1, row.y or -1)
  elseif row.s == AWAITING and row.t then
    flag, tail = TIMED, struct.pack('>I6', row.t)
  end
  return struct.pack(OUTCOME, row.s + flag, row.a, row.g, (row.l or -1) + 1, #token, token) .. tail
end

local function pack_row(row)
  local s, z = row.s, row.z
  if row.p == 0 and not row.q and not row.e and not row.u and row.a < 256 and row.g < 65536 and not row.n then
    if s == SENDING and row.k and row.b == NONE and not row.v and not z and not row.l then
      return struct.pack(FIRST_SENDING, s, row.a, row.g, row.t, row.w - row.t * 1000) .. row.k
    end
    local token = z and z[1] or ''
    if s > SENDING and not row.k and not (z and z[2]) and #token < 256 and (row.l or 0) < 65535 then
      return pack_outcome(row, token)
    end
  end
  return cmsgpack.pack(row)
end

local function unpack_sending(packed)
  local s, attempts, generation, begin, ahead, rest = struct.unpack(FIRST_SENDING, packed)
  return {
    s = s, g = generation, a = attempts, p = 0, t = begin, w = begin * 1000 + ahead, b = NONE,
    k = string.sub(packed, rest),
  }
end

local function unpack_outcome(packed)
  local flags, attempts, generation, status, token, rest = struct.unpack(OUTCOME, packed)
  local row = { s = flags % 16, g = generation, a = attempts, p = 0 }
  row.l = status > 0 and status - 1 or nil
  row.z = token ~= '' and { token } or nil
  if row.s == PUBLISHED then
    local partition, offset = unpack_at(flags, packed, rest)
    if partition >= 0 then
      row.x, row.y = partition, offset
    end
  elseif row.s ~= AWAITING then
    row.r = string.sub(packed, rest)
  elseif flags >= TIMED then
    row.t = struct.unpack('>I6', packed, rest)
  end
  return row
end

local function unpack_row(packed)
  local first = string.byte(packed)
  if first >= 128 then
    return cmsgpack.unpack(packed)
  end
  return first == SENDING and unpack_sending(packed) or unpack_outcome(packed)
end

local function pack_done(row)
  local flags, at = pack_at(row.x or -1, row.y or -1)
  local generation, status, code = '', '', ''
  if row.g > 0 then
    flags, generation = flags + WITH_GENERATION, struct.pack('>I2', math.min(row.g, 65535))
  end
  if row.l and row.l >= 0 then
    flags, status = flags + WITH_STATUS, struct.pack('>I2', row.l)
  end
  if row.c > 0 then
    flags, code = flags + WITH_CODE, string.char(row.c)
  end
  return string.char(flags + row.s) .. generation .. string.char(math.min(row.a, 255)) .. status .. code .. at
end

local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function unpack_done(packed)
  local flags, pos = struct.unpack('B', packed)
  local row = { f = true, s = flags % 16, g = 0, p = 0, c = 0 }
  if has(flags, WITH_GENERATION) then
    row.g, pos = struct.unpack('>I2', packed, pos)
  end
  row.a, pos = struct.unpack('B', packed, pos)
  if has(flags, WITH_STATUS) then
    row.l, pos = struct.unpack('>I2', packed, pos)
  end
  if has(flags, WITH_CODE) then
    row.c, pos = struct.unpack('B', packed, pos)
  end
  local partition, offset = unpack_at(flags, packed, pos)
  if partition >= 0 then
    row.x, row.y = partition, offset
  end
  return row
end
