--include _life _tables _usual _finished _forms _packing _rows _raising
-- Arguments: MessagePack of {row digests, marks}, both one after the other. What is known already stays, but for what
-- waits for nothing else than such an end.
local function says_less(row, stage)
  return row.s == NONE or row.s < stage and (row.s == AWAITING or row.s == PUBLISHED)
end

return serve_ready(function(arguments)
  local list, marks = unpack(cmsgpack.unpack(arguments))
  local at = 1
  for _, digest in ipairs(want_rows(list)) do
    local generation, stage, partition, offset, code
    generation, stage, partition, offset, code, at = struct.unpack(MARK, marks, at)
    local row = load_row(digest)
    if not row or row.g < generation then
      row = fresh_row(generation)
    end
    if row.g == generation and says_less(row, stage) then
      raise(digest, row, stage, partition, offset, code)
    end
  end
  save_rows()
  save_tables()
  return NOTHING
end)
