--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {owner, ...}. Reply: for each its last attempt, or ''.
return serve(function(owners)
  local found = {}
  for i, owner in ipairs(cmsgpack.unpack(owners)) do
    local last = call('HGET', P .. 'st:' .. owner, 'last')
    found[i] = last and string.sub(last, 7) or ''
  end
  return found
end)
