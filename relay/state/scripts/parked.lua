--include _life
-- A[5]: {owner, ...}; the owner '' stands for all of the tag. Reply: {{retries, polls}, ...}.
if not alive() then
  return false
end
local counts = {}
for i, owner in ipairs(A[5]) do
  local before = owner == '' and '' or owner .. '|'
  local found = call('HMGET', P .. 'pn', before .. 'r', before .. 'p')
  counts[i] = { tonumber(found[1] or 0), tonumber(found[2] or 0) }
end
return cmsgpack.pack(counts)
