-- Rows of deliveries and callbacks, as tables:
--   s stage, g generation, a attempts, p polls, l last status, e reason, r result, x/y partition and offset,
--   u due (ms; of a failure: until when an attempt may arrive),
--   k token of the current attempt, t its begin, or that of the last one, or when it became AWAITING (ms),
--   d begin of the last attempt that had no response and was followed by a retry (ms),
--   w its slot (us), b/v stage and begin before it,
--   q token of the last poll, z tokens already settled, o end of a row that only stores tokens (ms),
--   n/j/h: see _numbers.lua
-- A finished one (f) is stored by _finished.lua. The unfinished ones are in a hash beside each table of finished rows,
-- packed; a row moves to the newest hash when it changes, so it is kept for the window after its last change, too.
-- Changes are written when the tag is complete: one HSET and one HDEL for all rows.
local STUB_MS = 60000 -- maximum delay of a retry by the client library

-- Call first. `list`: the concatenated digests of all rows that the script will load. Returns them.
local function want_rows(list)
  local digests = {}
  for i = 1, #list / 12 do
    digests[i] = string.sub(list, 12 * i - 11, 12 * i)
  end
  T.rows, T.packed, T.homes, T.changes = {}, {}, {}, {}
  for _, t in ipairs(live_tables()) do
    for first = 0, #digests - 1, CHUNK do
      local found = call('HMGET', unfinished_of(t), '', unpack(digests, first + 1, math.min(first + CHUNK, #digests)))
      t.has_unfinished = found[1]
      for i = 2, #found do
        local digest = digests[first + i - 1]
        if found[i] and not T.packed[digest] then
          T.packed[digest], T.homes[digest] = found[i], t
        end
      end
    end
  end
  return digests
end

-- The row; nil if there is none.
local function load_row(digest)
  local row = T.rows[digest]
  if row then
    return row
  end
  local packed = T.packed[digest]
  row = packed and unpack_row(packed)
  if not row or row.o and row.o <= now then
    packed = find_finished(digest)
    row = packed and unpack_done(packed) or nil
  end
  T.rows[digest] = row
  return row
end

local function store_row(digest, row)
  row.o = row.s == NONE and row.p == 0 and now + STUB_MS or nil
  T.rows[digest], T.changes[digest] = row, row
end

local function finish_row(digest, row)
  keep_finished(digest, pack_done(row))
  T.rows[digest], T.packed[digest], T.changes[digest] = nil, nil, false
end

-- Call last, before save_tables.
local function save_rows()
  if not next(T.changes) then
    return
  end
  local current, fields, dropped = current_table(), {}, {}
  for digest, row in pairs(T.changes) do
    local home = T.homes[digest]
    if home and (not row or home ~= current) then
      dropped[home] = dropped[home] or {}
      table.insert(dropped[home], digest)
    end
    if row then
      fields[#fields + 1] = digest
      fields[#fields + 1] = pack_row(row)
    end
  end
  if #fields > 0 and not current.has_unfinished then
    make_hash(current, unfinished_of(current), EMPTY)
  end
  in_chunks('HSET', unfinished_of(current), fields)
  for home, digests in pairs(dropped) do
    in_chunks('HDEL', unfinished_of(home), digests)
  end
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

local function has_intent(digest)
  if T.any_intent == nil then
    T.any_intent = call('EXISTS', P .. 'i') == 1
  end
  return T.any_intent and call('HEXISTS', P .. 'i', digest) == 1
end

-- Whether the lane has a parked reference to this generation of the row, or a later one; and if not, the offset of the
-- first record that it has of the row's order key.
local function parked_there(lane, digest, generation, queue)
  local refs = P .. 'ref:' .. lane
  if T.any_reference == nil then
    T.any_reference = lane ~= '' and call('EXISTS', refs) == 1
  end
  if not T.any_reference then
    return false, nil
  end
  local reference = call('HGET', refs, digest)
  local kept = reference and cmsgpack.unpack(reference)[5] >= generation
  if queue == '' then
    return kept, nil
  end
  return kept, tonumber(call('ZRANGE', P .. 'q:' .. lane .. ':' .. queue, 0, 0, 'WITHSCORES')[2])
end

-- A row for the reply; 0 for an empty one. The offset is above the flags.
local function shown(digest, row, kept, behind)
  local flags = (has_intent(digest) and 1 or 0) + (kept and 2 or 0) + (behind and 4 + 8 * behind or 0)
  if not row or row.s == NONE then
    return flags == 0 and 0 or { NONE, flags }
  end
  local left = row.u and math.max(0, row.u - now) or 0
  local at = row.s >= PUBLISHED
  local reply = {
    row.s, flags, row.g, row.a, row.p, left, row.l or -1, row.e or '',
    at and row.x or -1, at and row.y or -1, row.c or 0, row.r or '',
  }
  if row.n then
    reply[13], reply[14] = row.n, (row.s == ACCEPTED or row.s == RESULT) and cmsgpack.pack(numbers_of(row.j)) or ''
  end
  return reply
end
