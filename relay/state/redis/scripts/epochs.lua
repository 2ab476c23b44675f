--include _life _fence
-- Arguments: MessagePack of the lane. Reply: {the highest epoch seen of it}, or {} where none was.
return serve_ready(function(arguments)
  local highest = highest_epoch(cmsgpack.unpack(arguments))
  return highest and { highest } or NOTHING
end)
