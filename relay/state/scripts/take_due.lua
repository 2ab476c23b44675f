--include _life
-- A[5]: lane, A[6]: its epoch, A[7]: limit, A[8]: lease in ms. Reply: {{owner, member, topic, partition, offset}, ...}.
if not alive() then
  return false
end
if not holds(A[5], A[6]) then
  return 0
end
local due, taken = P .. 'due:' .. A[5], {}
for _, member in ipairs(call('ZRANGEBYSCORE', due, '-inf', now, 'LIMIT', 0, A[7])) do
  local reference = call('HGET', P .. 'ref:' .. A[5], member)
  if reference then
    reference = cmsgpack.unpack(reference)
    call('ZADD', due, now + A[8], member)
    taken[#taken + 1] = { reference[1], member, reference[2], reference[3], reference[4] }
  else
    call('ZREM', due, member)
  end
end
return cmsgpack.pack(taken)
