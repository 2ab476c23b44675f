--include _life
-- Arguments: MessagePack of {receiver, limit}. Reply: entries, newest first.
return serve_ready(function(arguments)
  local receiver, limit = unpack(cmsgpack.unpack(arguments))
  local found = {}
  for _, member in ipairs(call('ZREVRANGE', P .. 'xo:' .. receiver, 0, limit - 1)) do
    found[#found + 1] = call('HGET', P .. 'xe:' .. receiver, member) or nil
  end
  return found
end)
