-- Rows as strings. Unfinished ones have three forms, distinguished by the first byte:
--   3: SENDING for the first time: attempts, generation, begin (ms), slot (us after it); its token
--   4 to 7, and WIDE or TIMED: an outcome without more fields: attempts, generation, last status + 1, the token it was settled
--     with; then the result (ACCEPTED, RESULT), the coordinate (PUBLISHED), or with TIMED its begin (AWAITING, ms)
--   128 and above: all others, a MessagePack map
-- Finished ones have one form, of at most 16 bytes.
local NONE, ENQUEUED, SENDING, ACCEPTED, AWAITING, RESULT, PUBLISHED, DONE, FAILED = 0, 2, 3, 4, 5, 6, 7, 8, 9
local FIRST_SENDING, OUTCOME = '>BBI2I6I3', '>BBI2I2Bc0'
local TIMED = 64
local WITH_GENERATION, WITH_STATUS, WITH_CODE = 16, 64, 128

-- A coordinate in as few bytes as possible; `wide`: its partition has two bytes.
local WIDE = 32

local function pack_at(partition, offset)
  if partition < 0 then
    return 0, ''
  end
  local bytes = 1
  while offset >= 256 ^ bytes do
    bytes = bytes + 1
  end
  if partition > 255 then
    return WIDE, struct.pack('>I2I' .. bytes, partition, offset)
  end
  return 0, struct.pack('>I1I' .. bytes, partition, offset)
end
