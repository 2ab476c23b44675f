--include _life _fence _room _parking
-- Arguments: MessagePack of {lane, its epoch, {{member, queue or '', generation}, ...}}. Reply: whether the next reference
-- of each queue is due.
return serve_ready(function(arguments)
  local lane, epoch, rows = unpack(cmsgpack.unpack(arguments))
  if not holds(lane, epoch) then
    return FENCED
  end
  local promoted = {}
  for i, row in ipairs(rows) do
    promoted[i] = drop_reference(lane, unpack(row))
  end
  return promoted
end)
