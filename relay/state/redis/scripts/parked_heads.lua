--include _life _room _parking
-- Arguments: MessagePack of {lane, {order key, ...}}. Reply: {{member, topic, partition, offset, number parked behind
-- it}, ...}; 0 if none is parked.
return serve_ready(function(arguments)
  local lane, queues = unpack(cmsgpack.unpack(arguments))
  local heads = {}
  for i, queue in ipairs(queues) do
    local head = head_of(queue_key(lane, queue))
    local reference = head and call('HGET', P .. 'ref:' .. lane, head)
    heads[i] = 0
    if reference then
      reference = cmsgpack.unpack(reference)
      local behind = call('ZCARD', queue_key(lane, queue)) - 1
      heads[i] = { head, reference[2], reference[3], reference[4], behind }
    end
  end
  return heads
end)
