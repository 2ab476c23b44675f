--include _life _memory
-- The newest message of each key: {row digest, partition, offset, recorded (ms), message id, digests of the last rows that
-- were replaced, when its window closes (ms, 0: none), until when the entry is kept (ms), since when this memory has lost
-- nothing (ms)}.
-- Arguments: MessagePack of {{digest of the key, row digest, partition, offset, recorded (ms), message id, how long it is
-- to be known (ms), window (ms)}, ...}. Reply: for each {id of the newer one or '', digests of the rows that are replaced, ms
-- until its window closes, and the time (ms)}. Rows that may have been lost do not count as replaced.
local KEPT = 3 * 12 -- of earlier calls: a process may have died before it ended them

-- Of two, always the same one: otherwise each would replace the other one when both are read again.
local function is_newer(entry, x)
  if entry[2] == x[3] then
    return entry[3] > x[4]
  elseif entry[4] == x[5] then
    return entry[2] > x[3]
  end
  return entry[4] > x[5]
end

return serve_ready(function(arguments)
  local replies, in_doubt = {}, may_be_lost_since(0)
  local chains = {} -- of this call, by the newest row: its place, and the reply for those that it replaces
  local since = T.loss.since
  for i, x in ipairs(cmsgpack.unpack(arguments)) do
    local key, window = P .. 'nw:' .. x[1], x[8]
    local packed = call('GET', key)
    local entry = packed and cmsgpack.unpack(packed)
    if entry and in_doubt and entry[9] ~= since then
      entry[6] = ''
    end
    if entry and entry[1] ~= x[2] and is_newer(entry, x) then
      replies[i] = { entry[5], '', 0, now }
    else
      if not entry or entry[1] ~= x[2] then
        local open = entry and (window == 0 or entry[7] > now)
        local closes = window > 0 and (open and entry[7] or now + window) or 0
        local former = open and not may_be_lost_since(entry[4]) and entry[1] or ''
        local chain = chains[former]
        if chain then -- not kept: after a crash its record is read again, like this one
          chain.by[1], replies[chain.at], chains[x[2]], former = x[6], chain.by, chain, ''
        end
        local replaced = entry and string.sub(entry[6] .. former, -KEPT) or ''
        entry = { x[2], x[3], x[4], x[5], x[6], replaced, closes, entry and entry[8] or 0, since }
      end
      entry[8] = math.max(entry[8], now + x[7])
      call('SET', key, cmsgpack.pack(entry), 'PX', entry[8] - now)
      local chain = chains[x[2]] or { by = { '', '', 0, now } }
      chain.at, chains[x[2]] = i, chain
      replies[i] = { '', entry[6], math.max(0, entry[7] - now), now }
    end
  end
  return replies
end)
