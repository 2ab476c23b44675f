--include _life
-- Arguments: MessagePack of {{receiver, coordinate, failed at, entry}, ...}.
local NEWEST = 10000
local LIFE_MS = 30 * 86400 * 1000 -- the retention of failed_messages: older ones no longer exist
return serve_ready(function(arguments)
  for _, x in ipairs(cmsgpack.unpack(arguments)) do
    local order, entries = P .. 'xo:' .. x[1], P .. 'xe:' .. x[1]
    call('ZADD', order, x[3], x[2])
    call('HSET', entries, x[2], x[4])
    local surplus = call('ZCARD', order) - NEWEST
    if surplus > 0 then
      for _, oldest in ipairs(call('ZRANGE', order, 0, surplus - 1)) do
        call('ZREM', order, oldest)
        call('HDEL', entries, oldest)
      end
    end
    call('PEXPIRE', order, LIFE_MS)
    call('PEXPIRE', entries, LIFE_MS)
    call('SADD', P .. 'xr', x[1])
  end
  return NOTHING
end)
