--include _life
-- Works while the tag is not ready: counts are only for one window, and are hints.
-- Arguments: MessagePack of {{name, messages, most, window (ms)}, ...}. Reply: for each {granted, left, ms until its
-- window ends}.
return serve(function(arguments)
  local replies = {}
  for i, x in ipairs(cmsgpack.unpack(arguments)) do
    local name, messages, most, window = unpack(x)
    local key = P .. 'quota:' .. window .. ':' .. name
    local found = call('HMGET', key, 'used', 'ends')
    local used, ends = tonumber(found[1]), tonumber(found[2])
    if not ends or ends <= now then
      used, ends = 0, now + window
    end
    ends = math.min(ends, now + window) -- the clock may have been set back
    local granted = used + messages <= most
    if granted then
      used = used + messages
      call('HSET', key, 'used', used, 'ends', string.format('%.0f', ends))
      call('PEXPIRE', key, ends - now)
    end
    replies[i] = { granted, math.max(0, most - used), ends - now }
  end
  return replies
end)
