--include _life
-- A[5]: {row digest, ...}. Finished rows are elsewhere, and stay.
if not alive() then
  return false
end
for _, digest in ipairs(A[5]) do
  call('DEL', P .. 'r:' .. digest)
end
return cmsgpack.pack({})
