--include _life _parking
-- A[5]: lane, A[6]: {{member, queue or ''}, ...}. Reply: whether the next of each queue is due.
if not alive() then
  return false
end
local promoted = {}
for i, row in ipairs(A[6]) do
  promoted[i] = drop_reference(A[5], row[1], row[2])
end
return cmsgpack.pack(promoted)
