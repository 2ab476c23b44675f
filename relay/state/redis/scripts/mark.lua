--include _life _tables _usual _forms _finished
-- Arguments: MessagePack of {row digests, marks}, both one after the other; a mark: generation, stage, partition or -1,
-- offset, code.
local FORM = '>I8Bi4i8B' -- as MARK of _raising.lua

-- The finished form of an outcome that is marked DONE, and so is over.
local function finished(packed, partition, offset, code)
  local flags, attempts, generation, status, _, rest = struct.unpack(OUTCOME, packed)
  local wide, at = pack_at(partition, offset)
  if partition < 0 and flags == PUBLISHED then
    at = string.sub(packed, rest)
  end
  local head, code_byte = DONE + wide, ''
  if code > 0 then
    head, code_byte = head + WITH_CODE, string.char(code)
  end
  if status == 0 then
    return string.char(head, attempts) .. code_byte .. at
  end
  return struct.pack('>BBI2', head + WITH_STATUS, attempts, status - 1) .. code_byte .. at
end

-- Outcomes of generation 0 that become DONE.
local function usual(list, marks)
  local digests, key, found = newest_rows(list)
  local values, at = {}, 1
  for i in ipairs(digests or NOTHING) do
    local generation, stage, partition, offset, code
    generation, stage, partition, offset, code, at = struct.unpack(FORM, marks, at)
    local packed = found[i + 1]
    local flags = packed and string.byte(packed) or 0
    if flags < ACCEPTED or flags > PUBLISHED or generation > 0 or stage ~= DONE then
      return nil
    end
    local _, _, known = struct.unpack('>BBI2', packed)
    if known > 0 then
      return nil
    end
    values[i] = finished(packed, partition, offset, code)
  end
  if not digests then
    return nil
  end
  for i, digest in ipairs(digests) do
    keep_finished(digest, values[i])
  end
  call('HDEL', key, unpack(digests))
  save_tables()
  return NOTHING
end

local function general()
--include _packing _rows _raising
  return function(list, marks)
    local at = 1
    for _, digest in ipairs(want_rows(list)) do
      local generation, stage, partition, offset, code
      generation, stage, partition, offset, code, at = struct.unpack(FORM, marks, at)
      local row = load_row(digest)
      if not row or row.g < generation then
        row = fresh_row(generation)
      end
      if row.g == generation and row.s < stage then
        raise(digest, row, stage, partition, offset, code)
      end
    end
    save_rows()
    save_tables()
    return NOTHING
  end
end

local otherwise -- the general way; its functions are made for the first tag that needs them
return serve_ready(function(arguments)
  local list, marks = unpack(cmsgpack.unpack(arguments))
  local said = usual(list, marks)
  if not said then
    otherwise = otherwise or general()
    said = otherwise(list, marks)
  end
  return said
end)
