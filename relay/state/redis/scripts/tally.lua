--include _life
-- Works while the tag is not ready: nothing depends on statistics.
-- Arguments: MessagePack of {process, number of the call, {{owner, {numbers to add}, at (ms), last attempt, last response
-- or false}, ...}}. A repeated call, with the number of the previous one, adds nothing.
local HOUR_MS = 3600 * 1000
local HOURS = 24
local LIFE_MS = (HOURS + 1) * HOUR_MS
return serve(function(arguments)
  local writer, number, tallies = unpack(cmsgpack.unpack(arguments))
  local told = P .. 'told:' .. writer
  number = string.format('%.0f', number)
  if call('GET', told) == number then
    return NOTHING
  end
  local hour = math.floor(now / HOUR_MS)
  for _, x in ipairs(tallies) do
    local owner, numbers, at, last, response = unpack(x)
    local key, field = P .. 'st:' .. owner, string.format('%.0f', hour)
    local found = call('HMGET', key, field, 'last')
    if found[1] then
      for i, before in ipairs(cmsgpack.unpack(found[1])) do
        numbers[i] = (numbers[i] or 0) + before
      end
    else
      for _, name in ipairs(call('HKEYS', key)) do
        if name ~= 'last' and tonumber(name) <= hour - HOURS then
          call('HDEL', key, name)
        end
      end
    end
    call('HSET', key, field, cmsgpack.pack(numbers))
    if not found[2] or struct.unpack('>I6', found[2]) <= at then
      call('HSET', key, 'last', struct.pack('>I6', at) .. last)
    end
    if response then
      call('SET', P .. 'lr:' .. owner, response, 'PX', LIFE_MS)
    end
    call('PEXPIRE', key, LIFE_MS)
  end
  call('SET', told, number, 'PX', LIFE_MS)
  return NOTHING
end)
