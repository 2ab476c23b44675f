--include _life _memory _tables
-- Arguments: MessagePack of {name of the recovery pass that has ended, ms for which missing rows prove nothing if
-- memory was lost}.
return serve(function(arguments)
  local pass, doubt_ms = unpack(cmsgpack.unpack(arguments))
  tell_time(call('GET', P .. 'clock'))
  local state, node, about = read_life()
  if node ~= NODE then
    return NOT_READY
  end
  if state == 'ready' then
    return NOTHING
  end
  if about.pass ~= pass then
    return NOT_READY
  end
  if about.lossy then
    about.doubt = math.max(about.doubt or 0, now + doubt_ms)
    about.open = about.open and doubt_ms > 0 or nil
  end
  if about.lossy and doubt_ms == 0 and call('EXISTS', P .. 'tables') == 0 then
    call('SET', P .. 'tables', KEYED) -- a new installation: no older release has to read it
  end
  about.seen = SERVER_MS
  write_life('ready', about)
  return NOTHING
end)
