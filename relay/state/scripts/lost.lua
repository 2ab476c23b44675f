--include _life
-- A[5]: a new pass's name. Reply: {''} when ready, else {name} of the recovery pass under way. Notes whether
-- anything can be missing: nothing is when each write of the former run was fsynced and this run read it back.
local key = P .. 'life'
local life = call('HMGET', key, 'node', 'state', 'pass', 'fsync', 'lossy')
if life[1] == A[1] then
  return cmsgpack.pack({ life[2] == 'ready' and '' or life[3] })
end
local lossy = 1
if life[1] and life[4] == '1' and A[4] then
  lossy = life[2] == 'ready' and 0 or tonumber(life[5])
end
call('HSET', key, 'node', A[1], 'state', 'recovering', 'pass', A[5], 'fsync', A[4] and 1 or 0, 'lossy', lossy)
if lossy == 1 then
  call('HSET', key, 'since', now)
end
return cmsgpack.pack({ A[5] })
