-- Lanes that wait for a place in flight at an endpoint while all are taken: `j` of its health, by lane a map: f begin of
-- its wait (ms), a its last call, u end of its turn. The longest waiting lane is first. During its turn a lane may begin
-- several attempts, so that no place stays free after a request until the next lane asks.
local FULL_WAIT_MS = 100 -- a lane asks again this often, because a request may end at any time
local GIVEN_UP_MS = 3 * FULL_WAIT_MS -- a lane that did not ask for this long no longer waits
local TURN_MS = 1000

local function tidy(line)
  for lane, place in pairs(line) do
    if place.f and now - place.a > GIVEN_UP_MS then
      place.f, place.a = nil, nil
    end
    if not place.f and (place.u or 0) <= now then
      line[lane] = nil
    end
  end
end

-- Number of lanes before `lane`, and whether any other waits.
local function before(line, lane, own)
  local ahead, others = 0, false
  for name, place in pairs(line) do
    if name ~= lane and place.f then
      others = true
      if not own.f or place.f < own.f or place.f == own.f and name < lane then
        ahead = ahead + 1
      end
    end
  end
  return (own.u or 0) > now and 0 or ahead, others
end

-- ms until the lane has to ask again; 0: it has a place.
local function take_place(ask, e)
  local owner, _, _, probe_ms, _, _, _, most, counted_ms = unpack(ask.limits)
  if most < 0 then
    return 0
  end
  local unknown_ms = unknown_in_flight(probe_ms, counted_ms)
  if unknown_ms > 0 then
    return math.min(unknown_ms, 1000)
  end
  local line = e.j or {}
  tidy(line)
  local own = line[ask.lane] or {}
  local ahead, others = before(line, ask.lane, own)
  local free = enter(owner, most - ahead, ask.token, probe_ms)
  if free then
    local turn = (own.u or 0) > now and own.u or now + TURN_MS
    line[ask.lane] = others and { u = turn } or nil
  else
    line[ask.lane] = { f = own.f or now, a = now, u = own.u }
  end
  if e.j or next(line) then
    e.j = next(line) and line
    touch(owner)
  end
  return free and 0 or FULL_WAIT_MS
end
