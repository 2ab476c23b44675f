--include _life _tables _finished _forms _packing _rows _room _raising
-- Arguments: marks. What is known already stays, but for what waits for nothing else than such an end.
local function says_less(row, stage)
  return row.s == NONE or row.s < stage and (row.s == AWAITING or row.s == PUBLISHED)
end

return serve_ready(function(marks)
  return raise_where(marks, says_less)
end)
