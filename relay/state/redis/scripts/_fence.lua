local function epoch_key(lane)
  return P .. 'ep:' .. lane
end

-- The highest epoch that was seen of the lane before it began anew; only while former owners may still turn up.
local function before_key(lane)
  return P .. 'before:' .. lane
end

-- The epoch that counts against an owner's, or is its own; nil: none was seen. And whether it fences the owner.
-- Where a lane has begun anew, an epoch of before looks like a later one of now. So one that is not the next, and nearer
-- to the highest one of before, is taken for one of before; an owner whom that wrongs begins anew as well.
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

-- Whether `epoch` is the highest one seen of the lane. A lost epoch heals with the next call.
local function holds(lane, epoch)
  local highest, fenced = fencing_epoch(lane, epoch)
  if not fenced and highest ~= epoch then
    call('SET', epoch_key(lane), epoch)
  end
  return not fenced
end
