--include _life _endpoints
-- Arguments: MessagePack of {owner, ...}.
-- Reply: {{0 closed, 1 open, 2 half-open; ms paused (-1: until resumed); failures; ms of outage; reason of its hold, or
-- ''; its begin (ms); its detail}, ...}.
return serve_ready(function(owners)
  local health = {}
  for i, owner in ipairs(cmsgpack.unpack(owners)) do
    local e = endpoint(owner)
    local breaker = not e.o and 0 or (now < e.o and 1 or 2)
    health[i] = { breaker, paused(e), e.c, outage(e), e.h == -1 and (e.w or 'paused') or '', e.a or 0, e.x or '' }
  end
  return health
end)
