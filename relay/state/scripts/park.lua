--include _life _parking
-- A[5]: lane, A[6]: its epoch, A[7]: references, as in _parking.lua.
if not alive() then
  return false
end
if not holds(A[5], A[6]) then
  return 0
end
for _, reference in ipairs(A[7]) do
  put_reference(A[5], reference)
end
return cmsgpack.pack({})
