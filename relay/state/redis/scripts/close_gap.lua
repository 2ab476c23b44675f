--include _life _memory
-- Arguments: MessagePack of {since (ms)} of the closed gap. A gap that was noticed later stays.
return serve_ready(function(arguments)
  local about = about_life(T.life)
  if about.open and about.since == cmsgpack.unpack(arguments)[1] then
    about.open = nil
    write_life('ready', about)
  end
  return NOTHING
end)
