--include _life _fence _room _parking _numbers
-- Arguments: MessagePack of {owner, {lane, ...}}.
return serve_ready(function(arguments)
  local owner, lanes = unpack(cmsgpack.unpack(arguments))
  call('DEL', P .. 'e:' .. owner, P .. 'st:' .. owner, P .. 'lr:' .. owner, room_key(owner))
  local numbers = numbers_of(owner)
  if #numbers[3] > 0 then
    numbers[3] = {}
    touch_numbers(owner)
    save_numbers()
  end
  for _, lane in ipairs(lanes) do
    call('DEL', epoch_key(lane), before_key(lane), hand_key(lane))
  end
  return NOTHING
end)
