--include _life
-- A[5]: name, A[6]: owner.
local key = P .. 'lease:' .. A[5]
if call('GET', key) == A[6] then
  call('DEL', key)
end
return cmsgpack.pack({})
