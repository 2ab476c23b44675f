--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {{lane, heads, what else is to be told}, ...}.
-- Apart, as releases before the second key read the first one, and know nothing but heads there.
local KEPT_MS = 7 * 86400 * 1000
return serve(function(signs)
  for _, x in ipairs(cmsgpack.unpack(signs)) do
    local at = struct.pack('>I6', now)
    call('SET', P .. 'sign:' .. x[1], at .. x[2], 'PX', KEPT_MS)
    call('SET', P .. 'about:' .. x[1], at .. x[3], 'PX', KEPT_MS)
  end
  return NOTHING
end)
