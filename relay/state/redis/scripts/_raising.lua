-- Raises rows whose hop record is acknowledged. Marks: MessagePack of {owners, row digests, marks}, the last two
-- concatenated; a mark: generation, stage, partition or -1, offset, code, index into owners. Optional fourth item:
-- digests of rows that a request waits for.
local MARK = '>I8Bi4i8BI2'

local function raise(digest, row, stage, partition, offset, code)
  row.s = stage
  row.r, row.k, row.u = nil, nil, nil
  row.t = stage == AWAITING and now or nil
  end_number(row, stage == FAILED and 'poison' or nil) -- the outcome of nearly every one was settled, which ended it
  row.n, row.j, row.h = nil, nil, nil
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

-- Releases the room of finished rows.
local function release_rooms(over)
  for owner, digests in pairs(over) do
    if call('EXISTS', room_key(owner)) == 1 then
      in_chunks('SREM', room_key(owner), digests)
    end
  end
end

-- Publishes hints (`hints` in servers.py). A login that may not publish only loses the hint.
local function hint(awaited)
  for _, digest in ipairs(awaited or NOTHING) do
    redis.pcall('PUBLISH', P .. 'hints', digest)
  end
end

-- Raises the rows for which `may(row, stage)` is true, within their generation.
local function raise_where(arguments, may)
  local owners, list, marks, awaited = unpack(cmsgpack.unpack(arguments))
  local over, at = {}, 1
  for _, digest in ipairs(want_rows(list)) do
    local generation, stage, partition, offset, code, index
    generation, stage, partition, offset, code, index, at = struct.unpack(MARK, marks, at)
    local row = load_row(digest)
    if not row or row.g < generation then
      row = fresh_row(generation)
    end
    if row.g == generation and may(row, stage) then
      local settled = row.s >= RESULT
      raise(digest, row, stage, partition, offset, code)
      if stage >= PUBLISHED then
        local owner = owners[index]
        over[owner] = over[owner] or {}
        table.insert(over[owner], digest)
        if not settled and has_intent(digest) then -- a loss took the outcome, so the lanes with a copy do not know the end
          free_references(digest, generation)
        end
      end
    end
  end
  release_rooms(over)
  save_rows()
  save_numbers()
  save_tables()
  hint(awaited)
  return NOTHING
end
