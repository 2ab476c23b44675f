--include _life
-- Arguments: MessagePack of {name, owner, or nil for whichever holds it}.
return serve(function(arguments)
  local name, owner = unpack(cmsgpack.unpack(arguments))
  local key = P .. 'lease:' .. name
  if not owner or call('GET', key) == owner then
    call('DEL', key)
  end
  return NOTHING
end)
