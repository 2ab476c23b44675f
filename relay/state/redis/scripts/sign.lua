--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {{lane, what is to be told with the sign}, ...}.
local KEPT_MS = 7 * 86400 * 1000
return serve(function(signs)
  for _, x in ipairs(cmsgpack.unpack(signs)) do
    call('SET', P .. 'sign:' .. x[1], struct.pack('>I6', now) .. x[2], 'PX', KEPT_MS)
  end
  return NOTHING
end)
