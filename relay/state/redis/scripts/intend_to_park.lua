--include _life _fence _room _parking
-- Arguments: MessagePack of {lane, its epoch, {row digest, ...}}. Stored separately from the rows: an intent survives a
-- mark, and belongs to the lane that writes the copy.
return serve_ready(function(arguments)
  local lane, epoch, rows = unpack(cmsgpack.unpack(arguments))
  if not holds(lane, epoch) then
    return FENCED
  end
  for _, digest in ipairs(rows) do
    set_intent(lane, digest, true)
  end
  return NOTHING
end)
