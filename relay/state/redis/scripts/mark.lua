--include _life _tables _finished _forms _packing _numbers _rows _room _parking _raising
-- Arguments: marks.
local function is_below(row, stage)
  return row.s < stage
end

return serve_ready(function(marks)
  return raise_where(marks, is_below)
end)
