--include _life _tables _finished _messages
-- Arguments: messages. Reply: the previous row of each, packed; 0: none.
local ACCEPTED = 1

-- The record that is read first is the message's first: one before it was deleted unread.
local function first_of(row, arrival)
  local same = string.sub(row, 2, 7) == string.sub(arrival, 2, 7)
  return stage_of(row) == ACCEPTED and same and arrival or row
end

return serve_ready(function(messages)
  local known = {}
  each_message(messages, function(digest, arrival)
    local row = find_or_keep(digest, arrival)
    known[#known + 1] = row or 0
    if row and stage_of(arrival) > stage_of(row) then
      keep_finished(digest, at_stage(stage_of(arrival), first_of(row, arrival)))
    end
  end)
  save_tables()
  return known
end)
