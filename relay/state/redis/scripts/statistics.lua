--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {owner, ...}. Reply: for each {{{hour, {numbers}}, ...},
-- {at (ms), last attempt}}; 0 instead of the latter if there was none.
local HOURS = 24
return serve(function(owners)
  local replies = {}
  local hour = math.floor(now / (3600 * 1000))
  for i, owner in ipairs(cmsgpack.unpack(owners)) do
    local found, hours, last = call('HGETALL', P .. 'st:' .. owner), {}, 0
    for n = 1, #found, 2 do
      if found[n] == 'last' then
        last = { struct.unpack('>I6', found[n + 1]), string.sub(found[n + 1], 7) }
      elseif tonumber(found[n]) > hour - HOURS then
        hours[#hours + 1] = { tonumber(found[n]), cmsgpack.unpack(found[n + 1]) }
      end
    end
    replies[i] = { hours, last }
  end
  return replies
end)
