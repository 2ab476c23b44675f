--include _life
-- A[5]: lane, A[6]: its epoch, A[7]: {{row digest, generation}, ...}. Kept apart from the rows: it outlives a mark.
if not alive() then
  return false
end
if not holds(A[5], A[6]) then
  return 0
end
for _, row in ipairs(A[7]) do
  call('HSET', P .. 'i', row[1], row[2])
end
return cmsgpack.pack({})
