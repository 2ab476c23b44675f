-- Shared beginning of every script. KEYS[1]: prefix of all keys of one hash tag.
-- ARGV[1]: MessagePack of {node, clock_us (0: the server's), dedup window in ms, fsync on every write?, ...}
-- Replies: nil = the tag is not ready, 0 = fenced, else MessagePack.
local P = KEYS[1]
local call = redis.call
local A = cmsgpack.unpack(ARGV[1])
local WINDOW = A[3]

local now_us = A[2]
if now_us == 0 then
  local clock = call('TIME')
  now_us = clock[1] * 1000000 + clock[2]
end
local now = math.floor(now_us / 1000)

-- Whether this memory was made ready on the server run that the caller is connected to; then also until when a
-- missing row proves nothing (ms), and when its loss was noticed (ms).
local function alive()
  local life = call('HMGET', P .. 'life', 'node', 'state', 'doubt', 'since')
  if life[1] ~= A[1] or life[2] ~= 'ready' then
    return false
  end
  return true, tonumber(life[3]) or 0, tonumber(life[4]) or 0
end

-- Whether `epoch` is the highest one seen of the lane. A lost epoch heals with the next call.
local function holds(lane, epoch)
  local key = P .. 'ep:' .. lane
  local highest = tonumber(call('GET', key) or -1)
  if highest < epoch then
    call('SET', key, epoch)
  end
  return highest <= epoch
end
