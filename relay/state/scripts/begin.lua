--include _life _finished _rows _endpoints
-- A[5]: lane, A[6]: its epoch, A[7]: limits {{owner, interval us, settle ms, probe ms}, ...},
-- A[8]: asks {{row digest, generation, token, kind, attempts, takeover, ask first, index into limits}, ...}.
-- Reply: verdicts {code, number, number, row}.
local ready, doubt, lost_at = alive()
if not ready then
  return false
end
if not holds(A[5], A[6]) then
  return 0
end

local GO, WAIT, AMBIGUOUS, HAVE, STALE = 1, 2, 3, 4, 5
local RATE, PAUSE, BREAKER, SETTLING = 0, 1, 2, 3
local POST = 0
local AHEAD_US = 1000000 -- how far ahead a slot of the rate may be reserved
local PROBE_WAIT_MS = 1000 -- others look again so often, for a probe may end long before its lease
local refs = P .. 'ref:' .. A[5]

local function have(digest, row)
  return { HAVE, 0, 0, shown(digest, row, call('HEXISTS', refs, digest) == 1, false) }
end

-- The verdict of an earlier attempt that may have reached the receiver; nil: there is none.
local function unresolved(row, ask, limit)
  local known, begun, attempts = row.s == SENDING, row.t, row.a
  if not known then
    if row.s ~= NONE or not ask[7] or now >= doubt then
      return nil
    end
    begun, attempts = lost_at, ask[5]
  end
  local left = begun + limit[3] - now
  if left > 0 then
    return { WAIT, left, SETTLING }
  end
  return not ask[6] and { AMBIGUOUS, attempts } or nil
end

local function held(e)
  local left = paused(e)
  return left ~= 0 and { WAIT, left, PAUSE } or nil
end

local function post(ask, limit, row)
  local digest, token = ask[1], ask[3]
  if row.s >= ACCEPTED then
    return have(digest, row)
  end
  if row.k == token then
    return { GO, row.a, math.max(0, row.w - now_us) }
  end
  if was_settled(row, token) then
    return { WAIT, 0, SETTLING }
  end
  local e = endpoint(limit[1])
  local verdict = unresolved(row, ask, limit) or held(e)
  if verdict then
    return verdict
  end
  if e.o then
    local left = (e.k and e.q or e.o) - now
    if left > 0 then
      return { WAIT, e.k and math.min(left, PROBE_WAIT_MS) or left, BREAKER }
    end
  end
  local slot = now_us
  if limit[2] > 0 then
    slot = math.max(now_us, e.n or 0)
    if slot - now_us > AHEAD_US then
      return { WAIT, math.ceil((slot - now_us - AHEAD_US) / 1000), RATE }
    end
    e.n = slot + limit[2]
    touch(limit[1])
  end
  if e.o then
    e.k, e.q = token, now + limit[4]
    touch(limit[1])
  end
  row.b, row.v = row.s, row.t
  row.s, row.k, row.t, row.w, row.u = SENDING, token, now, slot, nil
  row.a = math.max(row.a, ask[5]) + 1
  store_row(digest, row)
  return { GO, row.a, slot - now_us }
end

local function poll(ask, limit, row)
  if row.s >= RESULT then
    return have(ask[1], row)
  end
  if row.q ~= ask[3] then
    local verdict = held(endpoint(limit[1]))
    if verdict then
      return verdict
    end
    row.p, row.q = row.p + 1, ask[3]
    store_row(ask[1], row)
  end
  return { GO, row.p, 0 }
end

local verdicts = {}
for i, ask in ipairs(A[8]) do
  local limit, row = A[7][ask[8]], load_row(ask[1])
  if row and row.g > ask[2] then
    verdicts[i] = { STALE, row.g }
  else
    if not row or row.g < ask[2] then
      row = fresh_row(ask[2])
    end
    verdicts[i] = (ask[4] == POST and post or poll)(ask, limit, row)
  end
end
save_endpoints()
return cmsgpack.pack(verdicts)
