--include _life _endpoints
-- Works while the tag is not ready. Arguments: MessagePack of {owner, ...}. If a breaker is open, the next attempt may be a
-- probe, or a ping, unless one is in progress.
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
