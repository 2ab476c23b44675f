--include _life _memory _tables
-- Arguments: MessagePack of {name of the completed recovery pass, ms for which missing rows prove nothing if memory was
-- lost; nil or {lane, its end, ...} as read since the loss was noticed}. These ends are stored in `ends`, with the time of
-- the loss under ''.
local function keep_ends(ends, since, doubt_ms)
  call('DEL', P .. 'ends')
  if ends and doubt_ms > 0 then
    ends[#ends + 1], ends[#ends + 2] = '', string.format('%.0f', since)
    in_chunks('HSET', P .. 'ends', ends)
    call('PEXPIRE', P .. 'ends', doubt_ms)
  end
end

return serve(function(arguments)
  local pass, doubt_ms, ends = unpack(cmsgpack.unpack(arguments))
  set_time(call('GET', P .. 'clock'))
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
    keep_ends(ends, about.since, doubt_ms)
    about.open = about.open and doubt_ms > 0 or nil
  end
  if about.lossy and doubt_ms == 0 and call('EXISTS', P .. 'tables') == 0 then
    call('SET', P .. 'tables', KEYED) -- a new installation, which no older release has to read
  end
  about.seen = SERVER_MS
  write_life('ready', about)
  return NOTHING
end)
