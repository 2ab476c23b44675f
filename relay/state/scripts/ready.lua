--include _life
-- A[5]: name of the recovery pass that has ended, A[6]: ms for which missing rows prove nothing if memory was lost.
local key = P .. 'life'
local life = call('HMGET', key, 'node', 'state', 'pass', 'lossy', 'doubt')
if life[1] ~= A[1] then
  return false
end
if life[2] == 'ready' then
  return cmsgpack.pack({})
end
if life[3] ~= A[5] then
  return false
end
if life[4] == '1' then
  call('HSET', key, 'doubt', math.max(tonumber(life[5] or 0), now + A[6]))
end
call('HSET', key, 'state', 'ready')
return cmsgpack.pack({})
