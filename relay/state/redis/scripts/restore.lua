--include _life _memory _tables _finished _forms _packing _numbers _rows _room _parking
-- Arguments: MessagePack of {lane, the recovery pass or '', concatenated row digests, references as in _parking.lua}.
-- Reply: codes.
local FINISHED, THERE, PUT_BACK = 0, 1, 2

local function restored(lane, x)
  local row = load_row(x[1])
  if row and (row.g > x[3] or row.s >= DONE and row.g == x[3]) then
    return FINISHED
  end
  set_intent(lane, x[1], true)
  if row and row.g == x[3] and row.s >= RESULT then
    x[7] = 0 -- its copy only has to be removed
  end
  local there = reference_of(lane, x[1])
  if there and (there[5] > x[3] or there[5] == x[3] and is_listed(lane, x[1], there[6])) then
    return THERE
  end
  put_reference(lane, x)
  return PUT_BACK
end

return serve(function(arguments)
  local lane, pass, list, references = unpack(cmsgpack.unpack(arguments))
  if pass ~= '' then
    local _, node, about = read_life()
    if node ~= NODE or about.pass ~= pass then
      return NOT_READY
    end
  end
  set_time(call('GET', P .. 'clock'))
  want_rows(list)
  local codes = {}
  for i, reference in ipairs(references) do
    codes[i] = restored(lane, reference)
  end
  return codes
end)
