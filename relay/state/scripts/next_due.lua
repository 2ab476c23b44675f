--include _life
-- Arguments: lane. Reply: {ms until the first reference is due}, or {} without any.
return serve_ready(function(lane)
  local first = call('ZRANGE', P .. 'due:' .. lane, 0, 0, 'WITHSCORES')
  return first[2] and { tonumber(first[2]) - now } or NOTHING
end)
