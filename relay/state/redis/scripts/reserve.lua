--include _life
-- Arguments: MessagePack of {lane, its epoch, the offset before which records may be in progress}.
-- Reply: {} or, to an owner's first call, the remains of the former one: {offset, marked offset, times, ...}.
return serve(function(arguments)
  local lane, epoch, before = unpack(cmsgpack.unpack(arguments))
  local key = P .. 'taken:' .. lane
  local former = call('HGET', key, 'epoch')
  local remains = {}
  if former and tonumber(former) ~= epoch then
    remains[1] = tonumber(call('HGET', key, 'before'))
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
