--include _life _fence _room _parking
-- Arguments: MessagePack of {lane, its epoch, the epoch that was seen}. Reply: {whether the epoch is now the lane's}:
-- false if the stored one is neither the seen one nor already the new one.
return serve_ready(function(arguments)
  local lane, epoch, seen = unpack(cmsgpack.unpack(arguments))
  local highest, fenced = fencing_epoch(lane, epoch)
  if not fenced or highest ~= seen then
    return { not fenced and highest == epoch }
  end
  call('SET', epoch_key(lane), epoch)
  call('SET', before_key(lane), seen, 'PX', WINDOW)
  take_back(lane, math.huge) -- former epochs do not order owners
  return { true }
end)
