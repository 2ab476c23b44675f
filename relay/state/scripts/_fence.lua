-- Whether `epoch` is the highest one seen of the lane. A lost epoch heals with the next call.
local function holds(lane, epoch)
  local key = P .. 'ep:' .. lane
  local highest = tonumber(call('GET', key) or -1)
  if highest < epoch then
    call('SET', key, epoch)
  end
  return highest <= epoch
end
