-- Rows whose hop record is acknowledged. A mark: generation, stage, partition or -1, offset, code.
local MARK = '>I8Bi4i8B'

local function raise(digest, row, stage, partition, offset, code)
  row.s = stage
  row.r, row.k, row.u = nil, nil, nil
  row.t = stage == AWAITING and now or nil
  if partition >= 0 and stage >= PUBLISHED then
    row.x, row.y = partition, offset
  elseif stage == FAILED then
    row.x, row.y = nil, nil
  end
  if stage < DONE then
    store_row(digest, row)
  else
    row.c = code
    finish_row(digest, row)
  end
end
