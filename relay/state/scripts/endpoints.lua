--include _life _endpoints
-- Arguments: MessagePack of {owner, ...}.
-- Reply: {{0 closed, 1 open, 2 half-open; ms paused (-1: until resumed); failures; ms of outage; ms disabled}, ...}.
return serve_ready(function(owners)
  local health = {}
  for i, owner in ipairs(cmsgpack.unpack(owners)) do
    local e = endpoint(owner)
    local breaker = not e.o and 0 or (now < e.o and 1 or 2)
    health[i] = { breaker, paused(e), e.c, outage(e), e.d and now - e.d or -1 }
  end
  return health
end)
