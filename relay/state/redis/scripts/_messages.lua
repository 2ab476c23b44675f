-- Message rows: a byte (stage, whether the partition is wide, and from EXCLUDED on that it was routed to no receiver), 6
-- bytes of digest, a coordinate as in _finished.lua.
-- They are so small that they are stored like finished rows from the beginning, and only change their stage.
local EXCLUDED = 64

-- Messages in the arguments, one after the other: 12 bytes of row digest, a byte of length, the row.
local function each_message(messages, work)
  local at = 1
  while at <= #messages do
    local digest, row
    digest, row, at = struct.unpack('>c12Bc0', messages, at)
    work(digest, row)
  end
end

local function stage_of(row)
  return string.byte(row) % 16
end

local function at_stage(stage, row)
  return string.char(string.byte(row) - stage_of(row) + stage) .. string.sub(row, 2)
end
