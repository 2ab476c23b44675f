--include _life
-- Arguments: MessagePack of {receiver, limit, the lowest score of those to leave out, or empty}. Reply: entries, newest
-- first.
return serve_ready(function(arguments)
  local receiver, limit, newer = unpack(cmsgpack.unpack(arguments))
  local order, found = P .. 'xo:' .. receiver, {}
  local start = newer == '' and 0 or #call('ZRANGEBYSCORE', order, newer, '+inf') -- the ACL has no ZREVRANGEBYSCORE
  for _, member in ipairs(call('ZREVRANGE', order, start, start + limit - 1)) do
    found[#found + 1] = call('HGET', P .. 'xe:' .. receiver, member) or nil
  end
  return found
end)
