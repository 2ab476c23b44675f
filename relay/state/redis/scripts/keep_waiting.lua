--include _life
-- Works while the tag is not ready: for display. Arguments: MessagePack of MessagePack of {owner: Unix seconds}.
local LIFE_MS = 60 * 1000
return serve(function(arguments)
  call('SET', P .. 'wt', cmsgpack.unpack(arguments), 'PX', LIFE_MS)
  return NOTHING
end)
