--include _life _tables _finished _messages
-- Arguments: messages. All are ENQUEUED after it, those known before with their first arrival.
local ENQUEUED = 3
return serve_ready(function(messages)
  each_message(messages, function(digest, arrival)
    local row = find_finished(digest)
    if not row or stage_of(row) < ENQUEUED then
      keep_finished(digest, at_stage(ENQUEUED, row or arrival))
    end
  end)
  save_tables()
  return NOTHING
end)
