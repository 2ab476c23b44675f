--include _life _endpoints
-- Arguments: MessagePack of {owner, ms (-1: until resumed, 0: resume now, and close the breaker)}.
return serve_ready(function(arguments)
  local owner, pause_ms = unpack(cmsgpack.unpack(arguments))
  local e = endpoint(owner)
  e.h, e.d = pause_ms > 0 and now + pause_ms or pause_ms, nil
  if pause_ms == 0 then
    e.h = nil
    close_breaker(e)
  end
  touch(owner)
  save_endpoints()
  return NOTHING
end)
