--include _life
-- A[5]: {{receiver, coordinate}, ...}.
if not alive() then
  return false
end
for _, x in ipairs(A[5]) do
  call('ZREM', P .. 'xo:' .. x[1], x[2])
  call('HDEL', P .. 'xe:' .. x[1], x[2])
end
return cmsgpack.pack({})
