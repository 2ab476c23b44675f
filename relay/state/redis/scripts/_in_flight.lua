-- POSTs that may be under way to an endpoint, from whatever lane. `fl:` and the owner: the sorted set of the tokens of
-- their attempts, each until its request cannot be running any more (ms), also where its process is dead.
local UNUSED_MS = 3600 * 1000 -- longer than any request: no setting that was changed makes the set end before

local function in_flight_key(owner)
  return P .. 'fl:' .. owner
end

-- How many were not there.
local function put_in_flight(owner, probe_ms, tokens)
  local key, members = in_flight_key(owner), {}
  for i, token in ipairs(tokens) do
    members[2 * i - 1], members[2 * i] = now + probe_ms, token
  end
  local added = call('ZADD', key, unpack(members))
  call('PEXPIRE', key, probe_ms + UNUSED_MS)
  return added
end
