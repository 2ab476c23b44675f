--include _life _finished _rows _endpoints
-- A[5]: policies {{owner, failures, window ms, open ms}, ...},
-- A[6]: {{row digest, generation, token, change, due ms, counted, last status or -1, reason or '', result or '',
--         healthy (1, 0, -1: says nothing), pause ms (-1: until resumed), index into policies}, ...}. Reply: rows.
if not alive() then
  return false
end
local RELEASED, RETRY, DOUBT = 1, 2, 3
local REMEMBERED = 4 -- tokens a row remembers: repeats come soon

local function remember(row, token)
  local z = row.z or {}
  z[#z + 1] = token
  if #z > REMEMBERED then
    table.remove(z, 1)
  end
  row.z = z
end

local function take_health(x, first)
  local policy = A[5][x[12]]
  local e = endpoint(policy[1])
  if first or (e.k and e.k == x[3]) then
    record_health(e, x[3], x[10], policy[2], policy[3], policy[4])
    if x[11] == -1 then
      e.h = -1
    elseif x[11] > 0 and e.h ~= -1 then
      e.h = math.max(e.h or 0, now + x[11])
    end
    if x[10] ~= -1 or x[11] ~= 0 or e.o then
      touch(policy[1])
    end
  end
end

local function fall_back(row)
  row.a = row.a - 1
  row.s, row.t = row.b, row.v
  if row.s == NONE and row.a + row.p > 0 then
    row.s = ENQUEUED
  end
end

local function note(row, x)
  row.l = x[7] >= 0 and x[7] or nil
  row.e = x[8] ~= '' and x[8] or nil
  row.u = x[5] > 0 and now + x[5] or nil
end

-- Changes `row`; returns whether it did.
local function apply(row, x)
  local change, current = x[4], x[3] ~= '' and row.k == x[3]
  if change > DOUBT then
    if change <= row.s then
      return false
    end
    row.s, row.r = change, x[9]
    note(row, x)
    row.u = nil
    if x[3] ~= '' then
      row.a = math.max(row.a - ((current and not x[6]) and 1 or 0), x[6] and 1 or 0)
    end
  elseif not current then
    return false
  elseif change == RELEASED then
    fall_back(row)
  else
    row.s = change == RETRY and ENQUEUED or SENDING
    row.a = row.a - (x[6] and 0 or 1)
    note(row, x)
  end
  row.k, row.b, row.v, row.w = nil, nil, nil, nil
  return true
end

local rows = {}
for i, x in ipairs(A[6]) do
  local digest, generation, token = x[1], x[2], x[3]
  local row = load_row(digest)
  local first = token == '' or not row or not (row.f or was_settled(row, token))
  take_health(x, first)
  local mine = row
  if not row or row.g < generation then
    mine = fresh_row(generation)
  end
  local dirty = mine.g == generation and apply(mine, x)
  if first and token ~= '' and (dirty or mine == row or x[10] ~= -1 or x[11] ~= 0) then
    remember(mine, token)
    dirty = true
  end
  if dirty then
    store_row(digest, mine)
  end
  rows[i] = shown(digest, mine)
end
save_endpoints()
return cmsgpack.pack(rows)
