--include _life _tables _finished _messages
-- Arguments: messages. Reply: the previous row of each, packed; 0: none.
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
