--include _life _memory
-- Arguments: a new pass's name. Reply: {name of the recovery pass under way, '' when ready; whether anything can be
-- missing, 'lossy' or ''}: nothing is when each write of the former run was fsynced and this run read it back. Or
-- {'', 'newer'}: a newer release wrote what is there, in a form that this one cannot read; nothing is touched.
local SEEN_EVERY_MS = 10000

return serve(function(pass)
  tell_time(call('GET', P .. 'clock'))
  local state, node, about = read_life()
  if is_newer(about) then
    return { '', 'newer' }
  end
  if node == NODE then
    if state == 'ready' and math.abs(SERVER_MS - (about.seen or 0)) >= SEEN_EVERY_MS then
      about.seen = SERVER_MS
      write_life(state, about)
    end
    return { state == 'ready' and '' or about.pass, about.lossy and 'lossy' or '' }
  end
  local lossy = not (state and about.fsync and DURABLE and (state == 'ready' or not about.lossy))
  about = about or {}
  about.pass, about.fsync, about.lossy = pass, DURABLE, lossy
  if lossy then
    about.since = now
    about.kept = about.open and about.kept or about.seen or 0 -- what was written before that mark is there as it is
    about.open = true
  end
  write_life('recovering', about)
  return { pass, lossy and 'lossy' or '' }
end)
