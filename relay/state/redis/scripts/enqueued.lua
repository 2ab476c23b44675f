--include _life _tables _finished _messages
-- Arguments: messages. All become ENQUEUED, existing ones with their first arrival. But the row of another message with
-- the same id is not changed: its hop records may not be acknowledged.
local ENQUEUED = 3

local function same(row, arrival)
  return string.sub(row, 2, 7) == string.sub(arrival, 2, 7)
    or string.byte(row) % EXCLUDED - stage_of(row) == string.byte(arrival) % EXCLUDED - stage_of(arrival)
      and string.sub(row, 8) == string.sub(arrival, 8)
end

local function enqueued(row, arrival)
  local stage = string.byte(arrival) >= EXCLUDED and string.byte(row) < EXCLUDED and EXCLUDED + ENQUEUED or ENQUEUED
  return at_stage(stage, row)
end

return serve_ready(function(messages)
  each_message(messages, function(digest, arrival)
    local row = find_finished(digest)
    if not row or stage_of(row) < ENQUEUED and same(row, arrival) then
      keep_finished(digest, enqueued(row or arrival, arrival))
    end
  end)
  save_tables()
  return NOTHING
end)
