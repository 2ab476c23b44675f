--include _life _fence _tables _finished _forms _packing _numbers _rows _room _parking
-- Arguments: MessagePack of {lane, its epoch, concatenated row digests, references as in _parking.lua}.
-- Reply: whether each was put; false if its outcome is already stored, or a later generation is parked.
local function is_over(lane, x)
  local row, there = load_row(x[1]), reference_of(lane, x[1])
  return there and there[5] > x[3] or row and row.g >= x[3] and row.s >= (x[10] == FOR_POLL and RESULT or ACCEPTED)
end

return serve_ready(function(arguments)
  local lane, epoch, list, references = unpack(cmsgpack.unpack(arguments))
  if not holds(lane, epoch) then
    return FENCED
  end
  want_rows(list)
  local put = {}
  for i, reference in ipairs(references) do
    put[i] = not is_over(lane, reference)
    if put[i] then
      put_reference(lane, reference)
    end
  end
  return put
end)
