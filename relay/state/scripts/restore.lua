--include _life _finished _rows _parking
-- A[5]: lane, A[6]: the recovery pass, or '', A[7]: references, as in _parking.lua. Reply: codes.
if A[6] ~= '' then
  local life = call('HMGET', P .. 'life', 'node', 'pass')
  if life[1] ~= A[1] or life[2] ~= A[6] then
    return false
  end
end
local FINISHED, THERE, PUT_BACK = 0, 1, 2
local restored = {}
for i, x in ipairs(A[7]) do
  local row = load_row(x[1])
  if row and row.s >= DONE and row.g >= x[3] then
    restored[i] = FINISHED
  else
    call('HSET', P .. 'i', x[1], x[3])
    if call('HEXISTS', P .. 'ref:' .. A[5], x[1]) == 1 then
      restored[i] = THERE
    else
      put_reference(A[5], x)
      restored[i] = PUT_BACK
    end
  end
end
return cmsgpack.pack(restored)
