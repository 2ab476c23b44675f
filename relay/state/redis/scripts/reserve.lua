--include _life
-- Arguments: MessagePack of {lane, its epoch, the offset before which records may be in progress}.
-- Reply: {} or, to an owner's first call and its repeats, the remains of the former one: {offset, marked offset, times, ...}.
-- `left`: that offset of the former owner; `first`: the one in the owner's first call.
return serve(function(arguments)
  local lane, epoch, before = unpack(cmsgpack.unpack(arguments))
  local key, asked = P .. 'taken:' .. lane, string.format('%.0f', before)
  local former, reserved, left, first = unpack(call('HMGET', key, 'epoch', 'before', 'left', 'first'))
  local remains = {}
  if former and tonumber(former) ~= epoch then
    left, first = reserved, asked
    call('HSET', key, 'left', left, 'first', first)
  end
  if left and first == asked then
    remains[1] = tonumber(left)
    local all = call('HGETALL', key)
    for i = 1, #all, 2 do
      local offset = tonumber(all[i])
      if offset then
        remains[#remains + 1] = offset
        remains[#remains + 1] = tonumber(all[i + 1])
      end
    end
    before = math.max(before, remains[1])
  end
  call('HSET', key, 'epoch', epoch, 'before', string.format('%.0f', before))
  return remains
end)
