--include _life _finished _rows
-- A[5]: {{row digest, generation, stage, partition or -1, offset, code}, ...}.
if not alive() then
  return false
end

local function raise(digest, row, x)
  row.s = x[3]
  row.r, row.k, row.u = nil, nil, nil
  if x[4] >= 0 and x[3] >= PUBLISHED then
    row.x, row.y = x[4], x[5]
  elseif x[3] == FAILED then
    row.x, row.y = nil, nil
  end
  if x[3] < DONE then
    store_row(digest, row)
    return
  end
  row.c = x[6]
  keep_finished(digest, pack_done(row))
  call('DEL', P .. 'r:' .. digest)
end

for _, x in ipairs(A[5]) do
  local row = load_row(x[1])
  if not row or row.g < x[2] then
    row = fresh_row(x[2])
  end
  if row.g == x[2] and row.s < x[3] then
    raise(x[1], row, x)
  end
end
save_tables()
return cmsgpack.pack({})
