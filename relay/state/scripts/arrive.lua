--include _life _finished _messages
-- A[5]: {{row digest, {stage, digest, partition, offset}}, ...}. Reply: what was known of each before; 0: nothing.
if not alive() then
  return false
end
local known = {}
for i, item in ipairs(A[5]) do
  local key, arrival = item[1], item[2]
  local row = load_message(key)
  known[i] = row or 0
  if not row then
    call('SET', P .. 'm:' .. key, pack_message(arrival), 'PX', WINDOW)
  elseif arrival[1] > row[1] then
    call('SET', P .. 'm:' .. key, pack_message({ arrival[1], row[2], row[3], row[4] }), 'PX', WINDOW)
  end
end
return cmsgpack.pack(known)
