--include _life
-- Works while the tag is not ready: it is only for display.
-- Arguments: MessagePack of {{id of a key, ms since its last use}, ...}. A later use is kept.
local KEPT_MS = 400 * 86400 * 1000
return serve(function(used)
  for _, x in ipairs(cmsgpack.unpack(used)) do
    local key, at = P .. 'used:' .. x[1], now - x[2]
    local known = tonumber(call('GET', key) or 0)
    if known < at then
      call('SET', key, string.format('%.0f', at), 'PX', KEPT_MS)
    end
  end
  return NOTHING
end)
