local function epoch_key(lane)
  return P .. 'ep:' .. lane
end

-- The highest epoch of the lane before it began anew; kept only while former owners may still call.
local function before_key(lane)
  return P .. 'before:' .. lane
end

-- The epoch to compare an owner's with, or its own (nil: none was seen), and whether it fences the owner.
-- If a lane has begun anew, a former epoch looks like a later current one. So an epoch that is not the next, and is nearer
-- to the highest former one, is treated as a former one; an owner that is wrongly fenced by this begins anew, too.
local function fencing_epoch(lane, epoch)
  local highest = tonumber(call('GET', epoch_key(lane)) or nil)
  if highest and highest < epoch then
    local before = tonumber(call('GET', before_key(lane)) or nil)
    if before and epoch <= before and epoch - highest > math.max(1, before - epoch) then
      return before, true
    end
  end
  return highest, highest ~= nil and highest > epoch
end

-- Whether `epoch` is the highest one seen of the lane. A lost epoch is restored by the next call.
local function holds(lane, epoch)
  local highest, fenced = fencing_epoch(lane, epoch)
  if not fenced and highest ~= epoch then
    call('SET', epoch_key(lane), epoch)
  end
  return not fenced
end
