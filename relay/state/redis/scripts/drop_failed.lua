--include _life
-- Arguments: MessagePack of {{receiver, coordinate}, ...}.
return serve_ready(function(arguments)
  for _, x in ipairs(cmsgpack.unpack(arguments)) do
    call('ZREM', P .. 'xo:' .. x[1], x[2])
    call('HDEL', P .. 'xe:' .. x[1], x[2])
  end
  return NOTHING
end)
