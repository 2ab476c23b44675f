--include _life
-- A[5]: name, A[6]: owner, A[7]: ms. Reply: whether the owner holds it.
local key = P .. 'lease:' .. A[5]
local holder = call('GET', key)
if holder and holder ~= A[6] then
  return cmsgpack.pack({ false })
end
call('SET', key, A[6], 'PX', A[7])
return cmsgpack.pack({ true })
