--include _life _endpoints
-- Works while the tag is not ready. Arguments: MessagePack of {owner, ...}. The next attempt at one whose breaker is open
-- is let through as a probe, or a ping, unless one is under way.
return serve(function(owners)
  for _, owner in ipairs(cmsgpack.unpack(owners)) do
    local e = endpoint(owner)
    if e.o and not e.k and e.o > now then
      e.o = now
      touch(owner)
      wake(owner)
    end
  end
  save_endpoints()
  return NOTHING
end)
