--include _life
-- Arguments: MessagePack of {owner, {lane, ...}}.
return serve_ready(function(arguments)
  local owner, lanes = unpack(cmsgpack.unpack(arguments))
  call('DEL', P .. 'e:' .. owner)
  for _, lane in ipairs(lanes) do
    call('DEL', P .. 'ep:' .. lane, P .. 'hand:' .. lane)
  end
  return NOTHING
end)
