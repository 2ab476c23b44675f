-- The fast path of a script. Nearly always all rows of a tag are in the state that the script expects; then it only has to
-- check and change their strings. If one row is not, or if a table has to be created first, nothing has been changed yet,
-- and the script takes the slow path (_rows.lua).
-- Returns the digests in `list`, the key of the newest unfinished rows, and their values: that of digest i at i + 1, false
-- if it has none. nil: the fast path does not apply, or a digest is repeated.
local function newest_rows(list)
  local t, digests, once = live_tables()[1], {}, {}
  if not t or not fits(t) or t.period ~= math.floor(now / HALF) or #list > 12 * CHUNK then
    return nil
  end
  for i = 1, #list / 12 do
    local digest = string.sub(list, 12 * i - 11, 12 * i)
    if once[digest] then
      return nil
    end
    digests[i], once[digest] = digest, true
  end
  local key = unfinished_of(t)
  local found = call('HMGET', key, '', unpack(digests))
  if not found[1] then -- its hash has to be created, with its expiry
    return nil
  end
  return digests, key, found
end

-- Whether none of the rows exists. (The newest hash was already read, for `found`.)
local function all_unknown(digests, found)
  for i = 2, #found do
    if found[i] then
      return false
    end
  end
  local tables = live_tables()
  for i = 2, #tables do
    for _, packed in ipairs(call('HMGET', unfinished_of(tables[i]), unpack(digests))) do
      if packed then
        return false
      end
    end
  end
  for _, digest in ipairs(digests) do
    if find_finished(digest) then
      return false
    end
  end
  return true
end
