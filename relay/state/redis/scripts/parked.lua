--include _life
-- Arguments: MessagePack of {owner, ...}; the owner '' means all of the tag. Reply: {{retries, polls}, ...}.
return serve_ready(function(owners)
  local counts = {}
  for i, owner in ipairs(cmsgpack.unpack(owners)) do
    local before = owner == '' and '' or owner .. '|'
    local found = call('HMGET', P .. 'pn', before .. 'r', before .. 'p')
    counts[i] = { tonumber(found[1] or 0), tonumber(found[2] or 0) }
  end
  return counts
end)
