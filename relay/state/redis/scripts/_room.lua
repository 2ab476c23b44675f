-- Room for what an endpoint has to do with. `room:` and the owner: the set of rows whose POST may come to wait for an
-- answer, or does, and whose reference is not there yet; with those that are parked for a status GET or the receiver's
-- own answer, that is what counts against the cap.
local function room_key(owner)
  return P .. 'room:' .. owner
end

-- How many of an endpoint's deliveries wait for an answer, or may; and how many for a retry.
local function occupied(owner)
  local key = room_key(owner)
  if call('EXISTS', key, P .. 'pn') == 0 then
    return 0, 0
  end
  local found = call('HMGET', P .. 'pn', owner .. '|p', owner .. '|r')
  return call('SCARD', key) + tonumber(found[1] or 0), tonumber(found[2] or 0)
end
