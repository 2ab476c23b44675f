--include _life _tables _finished _endpoints
-- No arguments: a process can make attempts. Reply: {ms by which the server's clock was set back, in total}.
local ALONE_MS = 86400 * 1000 -- this long after the last process of release 0.1, a downgrade is not possible

-- Tables get keys if no process runs that cannot read them. A process of release 0.1 writes `there` without a third item
-- every 2 s.
local function use_keys(alone_since)
  if now - alone_since >= ALONE_MS and live_tables() and not T.keyed then
    T.keyed, T.unsaved = true, true
    save_tables()
  end
end

return serve_ready(function()
  note_time(T.ahead)
  local absent = absence()
  local alone_since = math.min(T.there[3] or now, now)
  call('SET', P .. 'there', cmsgpack.pack({ now, absent, alone_since }))
  use_keys(alone_since)
  return { T.ahead }
end)
