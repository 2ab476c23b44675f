--include _life
-- A[5]: receiver, A[6]: limit. Reply: entries, newest first.
if not alive() then
  return false
end
local found = {}
for _, member in ipairs(call('ZREVRANGE', P .. 'xo:' .. A[5], 0, A[6] - 1)) do
  found[#found + 1] = call('HGET', P .. 'xe:' .. A[5], member) or nil
end
return cmsgpack.pack(found)
