--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {{lane, heads, other content}, ...}.
-- Stored under two keys, because older releases read only the first one, and expect only heads there.
local KEPT_MS = 7 * 86400 * 1000
return serve(function(signs)
  for _, x in ipairs(cmsgpack.unpack(signs)) do
    local at = struct.pack('>I6', now)
    call('SET', P .. 'sign:' .. x[1], at .. x[2], 'PX', KEPT_MS)
    call('SET', P .. 'about:' .. x[1], at .. x[3], 'PX', KEPT_MS)
  end
  return NOTHING
end)
