--include _life _fence
-- Arguments: MessagePack of {lane, its epoch}. Reply: {the epoch to compare with, or its own}, or {} if none was seen.
return serve_ready(function(arguments)
  local highest = fencing_epoch(unpack(cmsgpack.unpack(arguments)))
  return highest and { highest } or NOTHING
end)
