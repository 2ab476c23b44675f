--include _life _fence _room _parking
-- Arguments: MessagePack of {owner, {lane, ...}}.
return serve_ready(function(arguments)
  local owner, lanes = unpack(cmsgpack.unpack(arguments))
  call('DEL', P .. 'e:' .. owner, P .. 'st:' .. owner, P .. 'lr:' .. owner, room_key(owner))
  for _, lane in ipairs(lanes) do
    call('DEL', epoch_key(lane), before_key(lane), hand_key(lane))
  end
  return NOTHING
end)
