--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {lane, ...}. Reply: {{ms since its last sign; what was told
-- with it}, ...}; 0 where there is none.
return serve(function(lanes)
  local signs = {}
  for i, lane in ipairs(cmsgpack.unpack(lanes)) do
    local sign = call('GET', P .. 'sign:' .. lane)
    signs[i] = sign and { math.max(0, now - struct.unpack('>I6', sign)), string.sub(sign, 7) } or 0
  end
  return signs
end)
