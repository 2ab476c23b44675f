--include _life _fence _room _parking
-- Arguments: MessagePack of {lane, its epoch, limit, lease in ms, token of this take}.
-- Reply: {{owner, member, topic, partition, offset, generation}, ...}.
return serve_ready(function(arguments)
  local lane, epoch, limit, lease_ms, token = unpack(cmsgpack.unpack(arguments))
  if not holds(lane, epoch) then
    return FENCED
  end
  token = token or '' -- older releases have none
  take_back(lane, epoch)
  undo_take(lane, token)
  local due, hand, taken, lent = P .. 'due:' .. lane, hand_key(lane), {}, {}
  for _, member in ipairs(call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, limit)) do
    local reference = reference_of(lane, member)
    if reference then
      call('ZADD', due, now + lease_ms, member)
      call('HSET', hand, member, '', '', epoch)
      lent[#lent + 1] = member
      taken[#taken + 1] = { reference[1], member, reference[2], reference[3], reference[4], reference[5] }
    else
      call('ZREM', due, member)
    end
  end
  if #lent > 0 then
    note_take(lane, token, lent)
  end
  return taken
end)
