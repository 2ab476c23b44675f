local function epoch_key(lane)
  return P .. 'ep:' .. lane
end

-- The highest epoch seen of the lane; nil: none.
local function highest_epoch(lane)
  return tonumber(call('GET', epoch_key(lane)) or nil)
end

-- Whether `epoch` is the highest one seen of the lane. A lost epoch heals with the next call.
local function holds(lane, epoch)
  local highest = highest_epoch(lane) or -1
  if highest < epoch then
    call('SET', epoch_key(lane), epoch)
  end
  return highest <= epoch
end
