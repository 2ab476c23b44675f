--include _life _tables _finished _forms _packing _numbers _rows _room _parking _raising
-- Arguments: marks. Existing rows stay, except those that only wait for such an end.
local function says_less(row, stage)
  return row.s == NONE or row.s < stage and (row.s == AWAITING or row.s == PUBLISHED)
end

return serve_ready(function(marks)
  return raise_where(marks, says_less)
end)
