--include _life
-- Works while the tag is not ready. Arguments: MessagePack of {owner}. Reply: {last response}; {} without one.
return serve(function(arguments)
  local found = call('GET', P .. 'lr:' .. cmsgpack.unpack(arguments)[1])
  return found and { found } or NOTHING
end)
