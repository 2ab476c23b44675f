-- POSTs that may be in flight to an endpoint, from any lane. `fl:` and the owner: a place for each, with the name of its
-- attempt (8 bytes of its token), and until when its request may be running, also of a dead process (ms, 6 bytes).
local PLACE = 14
local UNUSED_MS = 3600 * 1000 -- longer than any request, whatever setting was changed

local function in_flight_key(owner)
  return P .. 'fl:' .. owner
end

local function name_of(token)
  return #token == 8 and token or string.sub(token .. '\0\0\0\0\0\0\0\0', 1, 8)
end

local function with_places(places, names, probe_ms)
  local ends = struct.pack('>I6', now + probe_ms)
  return places .. table.concat(names, ends) .. ends
end

local function without_place(places, token)
  local name = name_of(token)
  local at = string.find(places, name, 1, true)
  while at and (at - 1) % PLACE > 0 do
    at = string.find(places, name, at + 1, true)
  end
  return at and string.sub(places, 1, at - 1) .. string.sub(places, at + PLACE) or places
end

local function keep_places(owner, places, probe_ms)
  call('SET', in_flight_key(owner), places, 'PX', probe_ms + UNUSED_MS)
end

-- Takes a place below `most` for `token`; returns whether there was one.
local function enter(owner, most, token, probe_ms)
  T.places = T.places or {}
  local places = T.places[owner]
  if not places then
    local living = {}
    local known = call('GET', in_flight_key(owner)) or ''
    for at = 1, #known, PLACE do
      if struct.unpack('>I6', known, at + 8) > now then
        living[#living + 1] = string.sub(known, at, at + PLACE - 1)
      end
    end
    places = table.concat(living)
  end
  local free = #places / PLACE < most
  if free then
    places = with_places(without_place(places, token), { name_of(token) }, probe_ms)
    keep_places(owner, places, probe_ms)
  end
  T.places[owner] = places
  return free
end

-- Stores the remaining places.
local function keep_rest(owner, places)
  if places == '' then
    call('DEL', in_flight_key(owner))
  else
    call('SET', in_flight_key(owner), places, 'KEEPTTL')
  end
end
