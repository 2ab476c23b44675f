--include _life
-- Arguments: MessagePack of {owner, ...}; the owner '' means all of the tag, 's:' all its sources. Reply: {{retries, polls},
-- ...}.
local function of_sources()
  local retries, found = 0, call('HGETALL', P .. 'pn')
  for i = 1, #found, 2 do
    retries = retries + (string.match(found[i], '^s:.*|r$') and found[i + 1] or 0)
  end
  return { retries, 0 }
end

return serve_ready(function(owners)
  local counts = {}
  for i, owner in ipairs(cmsgpack.unpack(owners)) do
    local before = owner == '' and '' or owner .. '|'
    local found = call('HMGET', P .. 'pn', before .. 'r', before .. 'p')
    counts[i] = owner == 's:' and of_sources() or { tonumber(found[1] or 0), tonumber(found[2] or 0) }
  end
  return counts
end)
