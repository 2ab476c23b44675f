-- Numbers of an endpoint's deliveries, without holes. `nr:` and the owner: MessagePack of {last number; numbers without an
-- end, as first, last, ...; gaps that the receiver has yet to learn of, as id, first, last, reason, ...; newest id}. A row
-- has its number (n), its owner (j), and the id of the newest gap that its requests carry (h).
local MOST_GAPS, MOST_CARRIED, RENUMBERED = 100, 20, 'renumbered'

local function numbers_of(owner)
  T.numbers = T.numbers or {}
  local q = T.numbers[owner]
  if not q then
    local stored = call('GET', P .. 'nr:' .. owner)
    q = stored and cmsgpack.unpack(stored) or { 0, {}, {}, 0 }
    T.numbers[owner] = q
  end
  return q
end

local function touch_numbers(owner)
  T.renumbered = T.renumbered or {}
  T.renumbered[owner] = true
end

local function save_numbers()
  for owner in pairs(T.renumbered or NOTHING) do
    call('SET', P .. 'nr:' .. owner, cmsgpack.pack(T.numbers[owner]))
  end
end

-- Gives the row its number. `known`: the one that it has, 0: none. `first`: its number if the endpoint has numbered nothing
-- before; 0: the state has given it the known one, and may have lost it. `lost`: so it may with all before the first, which
-- are a gap then. True if the number is new.
local function number(row, owner, known, first, lost)
  if row.n then
    return false
  end
  row.n, row.j = known, owner
  local q = numbers_of(owner)
  if known > 0 then
    if first == 0 and q[1] < known then
      local from = q[1] > 0 and q[1] + 1 or known
      q[1], q[2][#q[2] + 1], q[2][#q[2] + 2] = known, from, known
      touch_numbers(owner)
    end
    return false
  end
  local open = q[2]
  if q[1] == 0 and lost and first > 1 then
    q[3], q[4] = { 1, 1, first - 1, RENUMBERED }, 1
  end
  q[1] = q[1] > 0 and q[1] + 1 or first
  if open[#open] == q[1] - 1 then
    open[#open] = q[1]
  else
    open[#open + 1], open[#open + 2] = q[1], q[1]
  end
  row.n = q[1]
  touch_numbers(owner)
  return true
end

-- Whether the number had no end before.
local function take_out(open, n)
  for i = 1, #open, 2 do
    local first, last = open[i], open[i + 1]
    if first <= n and n <= last then
      if first == last then
        table.remove(open, i)
        table.remove(open, i)
      elseif n == first then
        open[i] = n + 1
      elseif n == last then
        open[i + 1] = n - 1
      else
        open[i + 1] = n - 1
        table.insert(open, i + 2, n + 1)
        table.insert(open, i + 3, last)
      end
      return true
    end
  end
  return false
end

local function has_open(open, first, last)
  for i = 1, #open, 2 do
    if open[i] <= last and open[i + 1] >= first then
      return true
    end
  end
  return false
end

-- Makes one of the oldest two gaps that have no number without an end between them. Others between have arrived.
local function join_gaps(q)
  local gaps = q[3]
  for i = 5, #gaps, 4 do
    local first, last = math.min(gaps[i - 3], gaps[i + 1]), math.max(gaps[i - 2], gaps[i + 2])
    if not has_open(q[2], first, last) then
      gaps[i + 1], gaps[i + 2], gaps[i + 3] = first, last, gaps[i - 1]
      for _ = 1, 4 do
        table.remove(gaps, i - 4)
      end
      return
    end
  end
end

-- A gap that grows gets another id, as requests in flight carry it as it was.
local function add_gap(q, n, reason)
  local gaps, first = q[3], n
  local last = #gaps
  if last > 0 and gaps[last] == reason and gaps[last - 1] == n - 1 then
    first, last = gaps[last - 2], last - 4
  elseif last >= 4 * MOST_GAPS then
    join_gaps(q)
    last = #gaps
  end
  q[4] = q[4] + 1
  gaps[last + 1], gaps[last + 2], gaps[last + 3], gaps[last + 4] = q[4], first, n, reason
end

-- The end of a numbered row. `reason`: why the receiver does not get it; nil: it has it, and the gaps that came with it.
local function end_number(row, reason)
  if not row.n then
    return
  end
  local q = numbers_of(row.j)
  if not take_out(q[2], row.n) then
    return
  end
  touch_numbers(row.j)
  if reason then
    add_gap(q, row.n, reason)
  elseif row.h then
    local left = {}
    for i = 1, #q[3], 4 do
      if q[3][i] > row.h or q[3][i + 2] > row.n then
        for k = i, i + 3 do
          left[#left + 1] = q[3][k]
        end
      end
    end
    q[3] = left
  end
end

-- The gaps below the row's number, as first, last, reason, ..., which its next request carries.
local function carried(row)
  local q, found = numbers_of(row.j), {}
  for i = 1, #q[3], 4 do
    if q[3][i + 2] < row.n and #found < 3 * MOST_CARRIED then
      for k = i + 1, i + 3 do
        found[#found + 1] = q[3][k]
      end
      row.h = q[3][i]
    end
  end
  return found
end
