--include _life _room _parking
-- Arguments: MessagePack of {maximum number}. Reply: {{owner, member, topic, partition, offset, ms since it was first
-- parked}, ...}: of each owner the first one of w; of very many owners, a part.
local TRIED, OWNERS = 20, 1000

-- An older release leaves entries whose reference has gone.
local function first_of(owner)
  for _ = 1, TRIED do
    local first = call('ZRANGE', longest_key(owner), 0, 0, 'WITHSCORES')
    if not first[1] then
      return nil
    end
    local member, lane = unpack(cmsgpack.unpack(first[1]))
    local reference = reference_of(lane, member)
    if reference and reference[1] == owner and reference[7] == FOR_RETRY then
      return { owner, member, reference[2], reference[3], reference[4], now - tonumber(first[2]) }
    end
    call('ZREM', longest_key(owner), first[1])
  end
end

return serve_ready(function(arguments)
  local limit = unpack(cmsgpack.unpack(arguments))
  local found = {}
  for i, field in ipairs(call('HKEYS', P .. 'pn')) do
    local owner = i <= OWNERS and string.match(field, '^(.*)|r$')
    local first = owner and #found < limit and first_of(owner)
    if first then
      found[#found + 1] = first
    end
  end
  return found
end)
