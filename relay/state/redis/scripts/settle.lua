--include _life _memory _tables _fast_path _forms _room _in_flight
-- Arguments: MessagePack of {policies {{owner, failures, window ms, open ms, offline after ms, ping every ms}, ...},
-- row digests, settlements}, the last two concatenated; a settlement: generation, change, counted (2: only if no attempt
-- was ever begun), last status or -1, healthy (1, 0, -1: neither, 2: it answered something other than an attempt), due ms
-- (RESULT: how long an attempt may arrive; with counted 2: when none had begun, Unix ms), pause ms, index into policies,
-- lengths of the token, the reason and the result, and these three ('' for none). A change with NUMBERED: then its number
-- or 0, and what that is if it is the first; with MAY_ARRIVE: the request of this attempt may arrive. A failure waits until
-- none may arrive. One without an attempt is not stored while the row may be read back from the log, as it may have another
-- end. Reply: 1 if the current attempt was settled as requested, there is no intent to park and no number has ended, else
-- the row.
local FORM = '>I8BBi2bi8i8I2I2I4I4'
local STEP, RELEASED, RETRY, DOUBT = 0, 1, 2, 3
local MAY_ARRIVE, NUMBERED, NUMBERS = 64, 128, '>I8I8'
local APPLIED = 1
local REMEMBERED = 4 -- tokens that a row stores: retries follow soon

-- Fast path for first attempts at one healthy endpoint. It takes half the time: 17 us less for one row, and 5 us less for
-- each of 20.
local function fast_path(policies, list, settlements)
  local owner = policies[1][1]
  local known = call('MGET', P .. 'e:' .. owner, in_flight_key(owner))
  local health, places = known[1] and cmsgpack.unpack(known[1]), known[2]
  local room = room_key(owner)
  local noted = call('EXISTS', P .. 'i', room) > 0
  if policies[2] or health and (health.c > 0 or health.o) or noted and call('EXISTS', P .. 'i') == 1 then
    return nil
  end
  local digests, key, found = newest_rows(list)
  local rows, fields, accepted, over, at = {}, {}, {}, {}, 1
  local left = places
  for i, digest in ipairs(digests or NOTHING) do
    local generation, change, counted, status, healthy, _, pause_ms, _, token_size, reason_size, result_size, from =
      struct.unpack(FORM, settlements, at)
    local packed = found[i + 1]
    if not packed or string.byte(packed) ~= SENDING or change <= DOUBT or change >= MAY_ARRIVE or counted == 0
      or healthy == 0 or pause_ms ~= 0 or reason_size > 0 or token_size > 255 then
      return nil
    end
    local _, attempts, known, _, _, rest = struct.unpack(FIRST_SENDING, packed)
    local token = string.sub(settlements, from, from + token_size - 1)
    if known ~= generation or string.sub(packed, rest) ~= token then
      return nil
    end
    at = from + token_size + result_size
    rows[i] = APPLIED
    left = left and without_place(left, token)
    table.insert(change == ACCEPTED and accepted or over, digest)
    fields[2 * i - 1] = digest
    fields[2 * i] = struct.pack(OUTCOME, change, attempts, generation, status + 1, token_size, token)
      .. string.sub(settlements, from + token_size, at - 1)
  end
  if not digests then
    return nil
  end
  if #accepted > 0 then
    call('SADD', room, unpack(accepted))
  end
  if noted and #over > 0 then
    call('SREM', room, unpack(over))
  end
  if left ~= places then
    keep_rest(owner, left)
  end
  call('HSET', key, unpack(fields))
  return rows
end

local function new_slow_path()
--include _finished _packing _numbers _rows _endpoints _parking
  -- Whether it waits, or may wait, for an answer.
  local function keeps_room(row)
    return row.s == SENDING or row.s == ACCEPTED or row.s == AWAITING
  end

  local function update_room(owner, digest, row, token)
    if row.s == ACCEPTED then
      call('SADD', room_key(owner), digest)
    elseif not keeps_room(row) then
      call('SREM', room_key(owner), digest)
    end
    if row.s == RESULT and token == '' and has_intent(digest) then
      free_references(digest, row.g)
    end
  end

  local function release_place(owner, token)
    local places = call('GET', in_flight_key(owner))
    local rest = places and without_place(places, token)
    if rest ~= places then
      keep_rest(owner, rest)
    end
  end

  local function remember(row, token)
    local z = row.z or {}
    z[#z + 1] = token
    if #z > REMEMBERED then
      table.remove(z, 1)
    end
    row.z = z
  end

  local function take_health(policy, token, healthy, pause_ms, first)
    local owner = policy[1]
    local e = endpoint(owner)
    if first or (e.k and e.k == token) then
      local opening = e.o
      if record_health(e, token, healthy, unpack(policy, 2)) then
        touch(owner)
        if opening and (not e.o or e.o < opening) then
          wake(owner)
        end
      end
      if pause_ms ~= 0 then
        e.h = e.h == -1 and -1 or math.max(e.h or 0, now + pause_ms)
        touch(owner)
      end
    end
  end

  local function fall_back(row)
    row.a = row.a - 1
    row.s, row.t = row.b, row.v
    if row.s == NONE and (row.a + row.p > 0 or row.n) then
      row.s = ENQUEUED
    end
  end

  -- Until when a failure waits, as what is next in order must not overtake an attempt that may still arrive; 0: it need not.
  local function failure_waits_until(row, x, current)
    if x.reason == '' or x.unsent or x.due_ms == 0 or row.s >= ACCEPTED then
      return 0
    end
    local begun = row.s == SENDING and (x.may_arrive or not current) and row.t or row.d or 0
    return math.max(begun, in_doubt() and T.loss.since or 0) + x.due_ms
  end

  -- Changes `row`; returns whether it did.
  local function apply(row, x, current)
    local change, waits_until = x.change, x.change == RESULT and failure_waits_until(row, x, current) or 0
    if change == STEP then
      row.e = row.s == AWAITING and x.reason or row.e
      return row.s == AWAITING
    end
    if change > DOUBT then
      local begun = row.s ~= NONE or row.a + row.p > 0
      if change <= row.s or x.unsent and (begun or may_be_lost_since(x.due_ms))
        or x.token == '' and x.reason ~= '' and not begun and may_come_back() then
        return false
      end
      row.s, row.r = change, x.result
      if x.token ~= '' then
        row.a = math.max(row.a - ((current and not x.counted) and 1 or 0), x.counted and 1 or 0)
      end
    elseif not current then
      return false
    elseif change == RELEASED then
      fall_back(row)
    else
      row.s = change == RETRY and ENQUEUED or SENDING
      row.d = x.may_arrive and row.t or row.d
      row.a = row.a - (x.counted and 0 or 1)
    end
    if change ~= RELEASED then
      row.l = x.status >= 0 and x.status or nil
      row.e = x.reason ~= '' and x.reason or nil
      row.u = change <= DOUBT and x.due_ms > 0 and now + x.due_ms or waits_until > now and waits_until or nil
    end
    row.k, row.b, row.v, row.w = nil, nil, nil, nil
    return true
  end

  -- Whether it has a number, which its outcome ends. One that got no request under its number leaves a gap; also a replay
  -- that the receiver has only confirmed, as it may have the message from an earlier life.
  local function end_with_number(row, x)
    local is_new = x.first and number(row, x.policy[1], x.known, x.first, in_doubt())
    local may_be_missing = is_new or row.g > 0 and x.token == ''
    end_number(row, x.reason ~= '' and string.match(x.reason, '[^\n]+') or may_be_missing and 'delivered' or nil)
    return row.n ~= nil
  end

  local function settle(digest, generation, x)
    local row, token = load_row(digest), x.token
    local first = token == '' or not row or not (row.f or was_settled(row, token))
    take_health(x.policy, token, x.healthy, x.pause_ms, first)
    if token ~= '' then
      release_place(x.policy[1], token)
    end
    local mine = row
    if not row or row.g < generation then
      mine = fresh_row(generation)
    end
    local current = mine.k == token and token ~= ''
    local changed = mine.g == generation and apply(mine, x, current)
    if changed then
      update_room(x.policy[1], digest, mine, token)
    end
    local ended = changed and x.change > DOUBT and end_with_number(mine, x)
    if first and token ~= '' and (changed or mine == row or x.healthy ~= -1 or x.pause_ms ~= 0) then
      remember(mine, token)
      store_row(digest, mine)
    elseif changed then
      store_row(digest, mine)
    end
    local is_known = changed and current and not ended and not has_intent(digest) and not (mine.s == RESULT and mine.u)
    return is_known and APPLIED or shown(digest, mine)
  end

  return function(policies, list, settlements)
    local rows, at = {}, 1
    for i, digest in ipairs(want_rows(list)) do
      local generation, change, counted, status, healthy, due_ms, pause_ms, index, token_size, reason_size, size, from =
        struct.unpack(FORM, settlements, at)
      local reason, result = from + token_size, from + token_size + reason_size
      at = result + size
      local known, first
      if change >= NUMBERED then
        change = change - NUMBERED
        known, first, at = struct.unpack(NUMBERS, settlements, at)
      end
      local may_arrive = change >= MAY_ARRIVE
      rows[i] = settle(digest, generation, {
        known = known, first = first, change = may_arrive and change - MAY_ARRIVE or change, may_arrive = may_arrive,
        counted = counted ~= 0, unsent = counted == 2, status = status, healthy = healthy, due_ms = due_ms,
        pause_ms = pause_ms, policy = policies[index], token = string.sub(settlements, from, reason - 1),
        reason = string.sub(settlements, reason, result - 1), result = string.sub(settlements, result, result + size - 1),
      })
    end
    save_rows()
    save_tables()
    save_endpoints()
    save_numbers()
    return rows
  end
end

local slow_path -- its functions are created for the first tag that needs them
return serve_ready(function(arguments)
  local policies, list, settlements = unpack(cmsgpack.unpack(arguments))
  local rows = fast_path(policies, list, settlements)
  if not rows then
    slow_path = slow_path or new_slow_path()
    rows = slow_path(policies, list, settlements)
  end
  return rows
end)
