--include _life _numbers
-- Arguments: MessagePack of {{owner, its numbers as in _numbers.lua}, ...}, as they were on the log. If numbers as high are
-- in use, or the tag is ready meanwhile, only gaps are taken over, of numbers that have no end here.
return serve(function(arguments)
  local ready = is_ready(call('GET', P .. 'life'))
  for _, x in ipairs(cmsgpack.unpack(arguments)) do
    local owner, restored = unpack(x)
    local q = numbers_of(owner)
    if q[1] < restored[1] and not ready then
      T.numbers[owner] = restored
      touch_numbers(owner)
    else
      for i = 1, #restored[3], 4 do
        for n = restored[3][i + 1], restored[3][i + 2] do
          if take_out(q[2], n) then
            add_gap(q, n, restored[3][i + 3])
            touch_numbers(owner)
          end
        end
      end
    end
  end
  save_numbers()
  return NOTHING
end)
