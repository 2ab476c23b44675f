--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {lane, ...}. Reply: {{ms since its last heartbeat; heads;
-- other content, '' from an older release}, ...}; 0 if there is none.
return serve(function(lanes)
  local signs = {}
  for i, lane in ipairs(cmsgpack.unpack(lanes)) do
    local sign, about = unpack(call('MGET', P .. 'sign:' .. lane, P .. 'about:' .. lane))
    local same = sign and about and string.sub(about, 1, 6) == string.sub(sign, 1, 6)
    local told = same and string.sub(about, 7) or ''
    signs[i] = sign and { math.max(0, now - struct.unpack('>I6', sign)), string.sub(sign, 7), told } or 0
  end
  return signs
end)
