--include _life _memory _tables _finished _forms _packing _numbers _rows _room _parking _raising
-- Arguments: marks. Existing rows stay, except those that only wait for such an end, and attempts of before a loss: a
-- replica that took over has these as they were when it fell behind, and no process works on them any more.
local WAITS = { [NONE] = true, [ACCEPTED] = true, [AWAITING] = true, [PUBLISHED] = true }

local function says_less(row, stage)
  T.loss = T.loss or about_life(T.life)
  return row.s < stage and (WAITS[row.s] or row.s < ACCEPTED and (row.t or 0) < (T.loss.since or 0))
end

return serve_ready(function(marks)
  return raise_where(marks, says_less)
end)
