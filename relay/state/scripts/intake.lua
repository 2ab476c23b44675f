--include _life _finished _rows
-- A[5]: lane, or '' for an onlooker. A[6]: {{row digest, generation, queue or ''}, ...}. Reply: rows.
if not alive() then
  return false
end
local refs, queues = P .. 'ref:' .. A[5], P .. 'q:' .. A[5] .. ':'
local any_parked = A[5] ~= '' and call('EXISTS', refs) == 1
local rows = {}
for i, ask in ipairs(A[6]) do
  local digest, row = ask[1], load_row(ask[1])
  if row and row.g < ask[2] then
    row = nil
  end
  local kept = any_parked and call('HEXISTS', refs, digest) == 1
  local behind = any_parked and not kept and ask[3] ~= '' and call('EXISTS', queues .. ask[3]) == 1
  rows[i] = shown(digest, row, kept, behind)
end
return cmsgpack.pack(rows)
