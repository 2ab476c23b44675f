--include _life _memory
-- Arguments: MessagePack of {the name for a new pass, the edition on the log, the number of writes of this memory that the
-- caller knows}. Reply: {name of the current recovery pass, '' if ready; 'lossy' if anything may be missing, 'outdated' if
-- that is because of a lower edition, or ''; that number}: nothing is missing if the former run fsynced each write and this
-- run loaded them. Or {'', 'newer', '0'}: the data was written by a newer release, in a form that this one cannot read;
-- nothing is changed.
local SEEN_EVERY_MS = 10000

-- Keys of any tags and databases that the server has dropped for lack of memory, since its start.
local EVICTED = tonumber(string.match(call('INFO', 'stats'), 'evicted_keys:(%d+)'))

return serve(function(arguments)
  local pass, edition, beats = unpack(cmsgpack.unpack(arguments))
  set_time(call('GET', P .. 'clock'))
  local state, node, about = read_life()
  if is_newer(about) then
    return { '', 'newer', '0' }
  end
  local outdated = about and (about.edition or 0) < edition and not (state == 'recovering' and about.lossy)
  local evicted = node == NODE and about.evicted and EVICTED > about.evicted
  local dropped = evicted and now - (about.since or 0) >= SEEN_EVERY_MS -- it may go on: no pass begins right after another
  local cut = state == 'ready' and (about.beats or 0) < beats -- a file that lost its end, which a server loads in silence
  if node == NODE and not outdated and not dropped and not cut then
    if state == 'ready' and math.abs(SERVER_MS - (about.seen or 0)) >= SEEN_EVERY_MS then
      about.seen, about.evicted = SERVER_MS, evicted and about.evicted or EVICTED
      about.beats = (about.beats or 0) + 1
      write_life(state, about)
    end
    return { state == 'ready' and '' or about.pass, about.lossy and 'lossy' or '', tostring(about.beats or 0) }
  end
  local lossy = outdated or dropped or cut or not (state and about.fsync and DURABLE and (state == 'ready' or not about.lossy))
  about = about or {}
  if outdated then -- its rows are of an earlier time, and would suppress what the log knows to be later
    call('DEL', P .. 'tables')
  end
  if outdated or dropped then -- rows of any time may be missing
    about.seen, about.open = nil, nil
  end
  about.pass, about.fsync, about.lossy, about.evicted = pass, DURABLE, lossy, EVICTED
  about.beats = math.max(about.beats or 0, beats) + 1000 -- above what other processes know
  if lossy then
    about.since = now
    about.kept = about.open and about.kept or about.seen or 0 -- rows written before that time are complete
    about.open = true
  end
  write_life('recovering', about)
  return { pass, outdated and 'outdated' or lossy and 'lossy' or '', tostring(about.beats) }
end)
