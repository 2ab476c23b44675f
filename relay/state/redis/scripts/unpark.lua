--include _life _room _parking
-- Arguments: MessagePack of {lane, {{member, queue or ''}, ...}}. Reply: whether the next of each queue is due.
return serve_ready(function(arguments)
  local lane, rows = unpack(cmsgpack.unpack(arguments))
  local promoted = {}
  for i, row in ipairs(rows) do
    promoted[i] = drop_reference(lane, row[1], row[2])
  end
  return promoted
end)
