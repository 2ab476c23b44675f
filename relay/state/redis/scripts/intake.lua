--include _life _tables _finished _forms _packing _numbers _rows
-- Arguments: MessagePack of {lane, or '' for readers; row digests; asks}, the last two concatenated;
-- an ask: generation, a byte of length, digest of the order key or ''. Reply: rows.
return serve_ready(function(arguments)
  local lane, list, asks = unpack(cmsgpack.unpack(arguments))
  local rows, at = {}, 1
  for i, digest in ipairs(want_rows(list)) do
    local generation, queue
    generation, queue, at = struct.unpack('>I8Bc0', asks, at)
    local row = load_row(digest)
    rows[i] = shown(digest, row and row.g >= generation and row, parked_there(lane, digest, generation, queue))
  end
  return rows
end)
