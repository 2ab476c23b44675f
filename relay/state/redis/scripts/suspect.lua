--include _life
-- Arguments: MessagePack of {lane, offset, number of marks; 0 removes the mark}.
return serve(function(arguments)
  local lane, offset, times = unpack(cmsgpack.unpack(arguments))
  local key, field = P .. 'taken:' .. lane, string.format('%.0f', offset)
  if times > 0 then
    call('HSET', key, field, times)
  else
    call('HDEL', key, field)
  end
  return NOTHING
end)
