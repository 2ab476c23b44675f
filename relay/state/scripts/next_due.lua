--include _life
-- A[5]: lane. Reply: {ms until the first reference is due}, or {} without any.
if not alive() then
  return false
end
local first = call('ZRANGE', P .. 'due:' .. A[5], 0, 0, 'WITHSCORES')
return cmsgpack.pack(first[2] and { tonumber(first[2]) - now } or {})
