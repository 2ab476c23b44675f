-- Parked references. Per lane: due (sorted set by due time in ms), ref (hash: member -> reference), one queue (sorted set
-- by order) per order key, of which only the head is in due. i (hash): rows with an intent to park -> the lanes that
-- have it, joined by spaces: the former owner of one lane may have handed a row to another lane while its next owner, which
-- knows nothing of that yet, parks it, too. A reference: {owner, topic, partition, offset, generation, queue or '', kind}.
-- For display, per owner: w (sorted set): {member, lane} of what is parked for a retry without an order key, by when it was
-- first parked.
local FOR_RETRY, FOR_POLL, FREED = 0, 1, 2 -- kinds of references; a freed one no longer counts and only has to be removed

local function count(owner, kind, by)
  if kind == FREED then
    return
  end
  kind = kind == FOR_POLL and 'p' or 'r'
  for _, field in ipairs({ kind, owner .. '|' .. kind }) do
    if call('HINCRBY', P .. 'pn', field, by) <= 0 then
      call('HDEL', P .. 'pn', field)
    end
  end
end

-- Leased references of a lane: member -> ''. Under '' the epoch of the owner that has them, under TAKE the token of its
-- last take, under LENT the members leased by that take.
local TAKE, LENT = 'take', 'lent'

local function hand_key(lane)
  return P .. 'hand:' .. lane
end

local function due_again(due, member)
  local at = call('ZSCORE', due, member)
  if at and tonumber(at) > now then
    call('ZADD', due, now, member)
  end
end

-- A newer owner has the lane: references leased by the former one are due at once, not at the end of the lease.
local function take_back(lane, epoch)
  local hand = hand_key(lane)
  local former = tonumber(call('HGET', hand, '') or epoch)
  if former >= epoch then
    return
  end
  local due = P .. 'due:' .. lane
  for _, member in ipairs(call('HKEYS', hand)) do
    due_again(due, member)
  end
  call('DEL', hand)
end

-- Undoes a repeated take whose reply was lost; otherwise no owner would have its references until their lease ends.
local function undo_take(lane, token)
  local hand = hand_key(lane)
  if token == '' or call('HGET', hand, TAKE) ~= token then
    return
  end
  for _, member in ipairs(cmsgpack.unpack(call('HGET', hand, LENT))) do
    if call('HEXISTS', hand, member) == 1 then
      due_again(P .. 'due:' .. lane, member)
    end
  end
end

local function note_take(lane, token, lent)
  if token == '' then
    call('HDEL', hand_key(lane), TAKE, LENT)
  else
    call('HSET', hand_key(lane), TAKE, token, LENT, cmsgpack.pack(lent))
  end
end

local function head_of(queue)
  return call('ZRANGE', queue, 0, 0)[1]
end

-- Makes the head of a queue due that has waited behind another; returns whether the head is due.
local function promote(due, queue)
  local head = head_of(queue)
  if not head then
    return false
  end
  local at = call('ZSCORE', due, head)
  if not at then
    call('ZADD', due, now, head)
    return true
  end
  return tonumber(at) <= now
end

local function queue_key(lane, queue)
  return P .. 'q:' .. lane .. ':' .. queue
end

-- The existing reference; nil if there is none.
local function reference_of(lane, member)
  local packed = call('HGET', P .. 'ref:' .. lane, member)
  return packed and cmsgpack.unpack(packed) or nil
end

local function longest_key(owner)
  return P .. 'w:' .. owner
end

local function forget_wait(owner, lane, member)
  call('ZREM', longest_key(owner), cmsgpack.pack({ member, lane }))
end

-- Whether it will become due: it is in due, or behind a head that is.
local function is_listed(lane, member, queue)
  local due = P .. 'due:' .. lane
  if queue == '' then
    return call('ZSCORE', due, member)
  end
  local key = queue_key(lane, queue)
  return call('ZSCORE', key, member) and call('ZSCORE', due, head_of(key))
end

-- x: {member, owner, generation, topic, partition, offset, due in ms, queue or '', order, kind}
local function put_reference(lane, x)
  local due, refs, member, queue = P .. 'due:' .. lane, P .. 'ref:' .. lane, x[1], x[8]
  call('HDEL', hand_key(lane), member)
  local old = reference_of(lane, member)
  if old then
    count(old[1], old[7], -1)
    if old[6] ~= '' and old[6] ~= queue then
      call('ZREM', queue_key(lane, old[6]), member)
      call('ZREM', due, member)
      promote(due, queue_key(lane, old[6]))
    end
  end
  count(x[2], x[10], 1)
  if x[10] == FOR_POLL then
    call('SREM', room_key(x[2]), member)
  end
  call('HSET', refs, member, cmsgpack.pack({ x[2], x[4], x[5], x[6], x[3], queue, x[10] }))
  if queue == '' and x[10] == FOR_RETRY then
    call('ZADD', longest_key(x[2]), 'NX', now, cmsgpack.pack({ member, lane }))
  elseif old then
    forget_wait(old[1], lane, member)
  end
  if queue == '' then
    call('ZADD', due, now + x[7], member)
    return
  end
  local key = queue_key(lane, queue)
  local before = head_of(key)
  call('ZADD', key, x[9], member)
  if head_of(key) ~= member then
    call('ZREM', due, member)
    promote(due, key)
    return
  end
  if before and before ~= member then
    call('ZREM', due, before)
  end
  call('ZADD', due, now + x[7], member)
end

-- The lanes that have written, or may write, a parked copy of the row.
local function lanes_with_intent(member)
  return string.gmatch(call('HGET', P .. 'i', member) or '', '%S+')
end

-- `wanted`: whether the lane has an intent from now on.
local function set_intent(lane, member, wanted)
  local lanes = { wanted and lane or nil }
  for other in lanes_with_intent(member) do
    if other ~= lane and string.find(other, '/', 1, true) then -- without a lane: the form of an older release
      table.insert(lanes, other)
    end
  end
  if lanes[1] then
    call('HSET', P .. 'i', member, table.concat(lanes, ' '))
  else
    call('HDEL', P .. 'i', member)
  end
end

-- The outcome of `member` was stored by a caller that does not hold its references: its copies only have to be removed. That
-- need not wait, and their room is released. References of later generations stay.
local function free_references(member, generation)
  for lane in lanes_with_intent(member) do
    local old = reference_of(lane, member)
    if old and old[5] <= generation then
      count(old[1], old[7], -1)
      forget_wait(old[1], lane, member)
      old[7] = FREED
      call('HSET', P .. 'ref:' .. lane, member, cmsgpack.pack(old))
      due_again(P .. 'due:' .. lane, member)
    end
  end
end

-- Removes a reference of this generation or an earlier one; that of a later generation stays, with its data.
local function drop_reference(lane, member, queue, generation)
  local due, refs = P .. 'due:' .. lane, P .. 'ref:' .. lane
  local old = reference_of(lane, member)
  if old and old[5] > generation then
    return false
  end
  if old then
    count(old[1], old[7], -1)
    call('HDEL', refs, member)
    forget_wait(old[1], lane, member)
    if old[6] ~= '' then
      queue = old[6]
    end
  end
  call('ZREM', due, member)
  call('HDEL', hand_key(lane), member)
  set_intent(lane, member, false)
  if queue == '' then
    return false
  end
  call('ZREM', queue_key(lane, queue), member)
  return promote(due, queue_key(lane, queue))
end
