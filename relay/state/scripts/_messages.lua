-- Message rows: {stage, digest, partition, offset}, unfinished ones as keys of their own, ENQUEUED ones as finished rows.
local function pack_message(row)
  local wide, at = pack_at(row[3], row[4])
  return struct.pack('B', row[1] + wide) .. row[2] .. at
end

local function unpack_message(value)
  local flags = struct.unpack('B', value)
  local partition, offset = unpack_at(flags, value, 8)
  return { flags % 16, string.sub(value, 2, 7), partition, offset }
end

local function load_message(digest)
  local value = call('GET', P .. 'm:' .. digest) or find_finished(digest)
  return value and unpack_message(value)
end
