--include _life _tables _finished _messages
-- Arguments: messages. Reply: what was known of each before, packed; 0: nothing.
return serve_ready(function(messages)
  local known = {}
  each_message(messages, function(digest, arrival)
    local row = find_or_keep(digest, arrival)
    known[#known + 1] = row or 0
    if row and stage_of(arrival) > stage_of(row) then
      keep_finished(digest, at_stage(stage_of(arrival), row))
    end
  end)
  save_tables()
  return known
end)
