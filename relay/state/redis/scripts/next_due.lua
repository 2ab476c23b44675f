--include _life _room _parking
-- Arguments: MessagePack of {lane, its epoch}. Reply: {ms until the first reference is due}, or {} without references.
return serve_ready(function(arguments)
  local lane, epoch = unpack(cmsgpack.unpack(arguments))
  take_back(lane, epoch)
  local first = call('ZRANGE', P .. 'due:' .. lane, 0, 0, 'WITHSCORES')
  return first[2] and { tonumber(first[2]) - now } or NOTHING
end)
