--include _life
-- Arguments: MessagePack of {name, owner}.
return serve(function(arguments)
  local name, owner = unpack(cmsgpack.unpack(arguments))
  local key = P .. 'lease:' .. name
  if call('GET', key) == owner then
    call('DEL', key)
  end
  return NOTHING
end)
