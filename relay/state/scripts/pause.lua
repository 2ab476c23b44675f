--include _life _endpoints
-- A[5]: owner, A[6]: ms (-1: until resumed, 0: resume now, and close the breaker).
if not alive() then
  return false
end
local e = endpoint(A[5])
e.h = A[6] > 0 and now + A[6] or A[6]
if A[6] == 0 then
  e.h = nil
  close_breaker(e)
end
touch(A[5])
save_endpoints()
return cmsgpack.pack({})
