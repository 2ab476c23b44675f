--include _life _fence _room _parking
-- Arguments: MessagePack of {lane, its epoch, the epoch that was seen}. Reply: {whether the epoch is the lane's now}:
-- not where it is neither what was seen nor set already.
return serve_ready(function(arguments)
  local lane, epoch, seen = unpack(cmsgpack.unpack(arguments))
  local highest, fenced = fencing_epoch(lane, epoch)
  if not fenced or highest ~= seen then
    return { not fenced and highest == epoch }
  end
  call('SET', epoch_key(lane), epoch)
  call('SET', before_key(lane), seen, 'PX', WINDOW)
  take_back(lane, math.huge) -- epochs of before say nothing about who came first
  return { true }
end)
