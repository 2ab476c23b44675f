--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {field, occurrence, mark}. Reply: {the mark in effect}: the
-- first one of the occurrence.
return serve(function(arguments)
  local field, occurrence, mark = unpack(cmsgpack.unpack(arguments))
  local key, begin = P .. 'in', occurrence .. '\n'
  local known = call('HGET', key, field)
  if known and string.sub(known, 1, #begin) == begin then
    return { string.sub(known, #begin + 1) }
  end
  call('HSET', key, field, begin .. mark)
  return { mark }
end)
