--include _life _tables _finished _forms _packing _numbers _rows _room _raising
-- Arguments: marks.
local function is_below(row, stage)
  return row.s < stage
end

local function free(digest, generation)
--include _parking
  free_references(digest, generation)
end

return serve_ready(function(marks)
  return raise_where(marks, is_below, free)
end)
