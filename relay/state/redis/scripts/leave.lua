--include _life
-- Arguments: MessagePack of {lane, its epoch}. What a newer owner has written stays.
return serve(function(arguments)
  local lane, epoch = unpack(cmsgpack.unpack(arguments))
  local key = P .. 'taken:' .. lane
  if tonumber(call('HGET', key, 'epoch') or -1) == epoch then
    call('DEL', key)
  end
  return NOTHING
end)
