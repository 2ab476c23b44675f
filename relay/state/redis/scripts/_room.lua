-- Room for an endpoint's pending answers. `room:` and the owner: the set of rows whose POST waits, or may wait, for an
-- answer, and which have no reference yet. Together with those parked for a status GET or the receiver's own answer, they
-- count against the limit.
local function room_key(owner)
  return P .. 'room:' .. owner
end

-- Number of an endpoint's deliveries that wait, or may wait, for an answer; and number that wait for a retry.
local function occupied(owner)
  local key = room_key(owner)
  if call('EXISTS', key, P .. 'pn') == 0 then
    return 0, 0
  end
  local found = call('HMGET', P .. 'pn', owner .. '|p', owner .. '|r')
  return call('SCARD', key) + tonumber(found[1] or 0), tonumber(found[2] or 0)
end
