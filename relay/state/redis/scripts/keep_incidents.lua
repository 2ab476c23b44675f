--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {{{id, incident}, ...}, {id to remove, ...},
-- {{id, incident}, ...} that are stored unless they are}.
local LIFE_MS = 30 * 86400 * 1000
return serve(function(arguments)
  local kept, dropped, new = unpack(cmsgpack.unpack(arguments))
  local key = P .. 'in'
  for _, x in ipairs(kept) do
    call('HSET', key, x[1], x[2])
  end
  for _, id in ipairs(dropped) do
    call('HDEL', key, id, id .. '/acknowledge', id .. '/resolve')
  end
  for _, x in ipairs(new) do
    call('HSETNX', key, x[1], x[2])
  end
  call('PEXPIRE', key, LIFE_MS)
  return NOTHING
end)
