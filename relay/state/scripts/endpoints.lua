--include _life _endpoints
-- A[5]: {owner, ...}. Reply: {{0 closed, 1 open, 2 half-open; ms paused (-1: until resumed); failures}, ...}.
if not alive() then
  return false
end
local health = {}
for i, owner in ipairs(A[5]) do
  local e = endpoint(owner)
  health[i] = { not e.o and 0 or (now < e.o and 1 or 2), paused(e), e.c }
end
return cmsgpack.pack(health)
