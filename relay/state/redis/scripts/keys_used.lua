--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {id of a key, ...}. Reply: for each ms since its last use,
-- -1 if unknown.
return serve(function(ids)
  local found = {}
  for i, id in ipairs(cmsgpack.unpack(ids)) do
    local at = tonumber(call('GET', P .. 'used:' .. id))
    found[i] = at and math.max(0, now - at) or -1
  end
  return found
end)
