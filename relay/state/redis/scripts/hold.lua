--include _life _endpoints
-- Works while the tag is not ready. Arguments: MessagePack of {{{owner, reason, since (ms), detail}, ...}, 1 if they were
-- read from the log again, ms: other endpoints that were held before then are resumed; 0: they stay}. Holds that were
-- read again count only if nothing newer is stored; of the others, an operator's always do, and those that a request
-- found unless the endpoint was resumed since it began. Reply: {place of each hold whose endpoint is not held, ...}
return serve(function(arguments)
  local holds, again, before = unpack(cmsgpack.unpack(arguments))
  local named, refused = {}, {}
  for i, x in ipairs(holds) do
    local owner, reason, since, detail = unpack(x)
    local e = endpoint(owner)
    named[owner] = true
    local counts
    if e.h == -1 then
      counts = again == 0 or decided(e) < since
    else -- a resume in the future is one from before the clock was set back
      counts = since >= decided(e) or e.v > now or again == 0 and reason == 'paused'
    end
    if counts then
      if again == 1 or e.h ~= -1 or e.w ~= reason or reason == 'paused' then
        e.h, e.w, e.a, e.x = -1, reason, since, detail
      end -- else concurrent requests found the same reason: it is held since the first of them
      e.v = again == 0 and math.max(now, since) or since
      call('SADD', P .. 'held', owner)
      touch(owner)
    end
    if e.h ~= -1 then
      refused[#refused + 1] = i - 1
    end
  end
  for _, owner in ipairs(before > 0 and call('SMEMBERS', P .. 'held') or NOTHING) do
    if not named[owner] and decided(endpoint(owner)) < before then
      resume(owner)
    end
  end
  save_endpoints()
  return refused
end)
