--include _life _tables _usual
-- Arguments: MessagePack of {lane, or '' for an onlooker; row digests; asks}, the last two one after the other;
-- an ask: generation, a byte of length, digest of the order key or ''. Reply: rows.
local function usual(lane, list)
  local digests, _, found = newest_rows(list)
  if not digests or not all_unknown(digests, found) or call('EXISTS', P .. 'ref:' .. lane, P .. 'i') > 0 then
    return nil
  end
  local rows = {}
  for i in ipairs(digests) do
    rows[i] = 0
  end
  return rows
end

local function general()
--include _finished _forms _packing _rows
  return function(lane, list, asks)
    local refs, queues, at = P .. 'ref:' .. lane, P .. 'q:' .. lane .. ':', 1
    local rows = {}
    for i, digest in ipairs(want_rows(list)) do
      local generation, queue
      generation, queue, at = struct.unpack('>I8Bc0', asks, at)
      local row = load_row(digest)
      if row and row.g < generation then
        row = nil
      end
      local kept = lane ~= '' and call('HEXISTS', refs, digest) == 1
      local behind = lane ~= '' and not kept and queue ~= '' and call('EXISTS', queues .. queue) == 1
      rows[i] = shown(digest, row, kept, behind)
    end
    return rows
  end
end

local otherwise -- the general way; its functions are made for the first tag that needs them
return serve_ready(function(arguments)
  local lane, list, asks = unpack(cmsgpack.unpack(arguments))
  local said = usual(lane, list)
  if not said then
    otherwise = otherwise or general()
    said = otherwise(lane, list, asks)
  end
  return said
end)
