--include _life _fence _parking
-- Arguments: MessagePack of {lane, its epoch, references as in _parking.lua}.
return serve_ready(function(arguments)
  local lane, epoch, references = unpack(cmsgpack.unpack(arguments))
  if not holds(lane, epoch) then
    return FENCED
  end
  for _, reference in ipairs(references) do
    put_reference(lane, reference)
  end
  return NOTHING
end)
