-- Shared beginning of every script, which processes several hash tags in one call.
-- KEYS: for each tag the prefix of all its keys. ARGV[1]: MessagePack of {node, clock in us (0: the server's), dedup
-- window in ms, fsync on every write?}. ARGV[1 + i]: arguments of tag KEYS[i], in the form that the script describes.
-- Reply: MessagePack of an array, one item per tag: false = not ready, true = fenced, else the script's result.
local call = redis.call
local NODE, now_us, WINDOW, DURABLE = unpack(cmsgpack.unpack(ARGV[1]))
if now_us == 0 then
  local clock = call('TIME')
  now_us = clock[1] * 1000000 + clock[2]
end
local now = math.floor(now_us / 1000)
local SERVER_US, SERVER_MS = now_us, now

local NOT_READY, FENCED = false, true
local NOTHING = {} -- the reply without a result

local P -- the key prefix of the current tag
local T -- cached data of the current tag; a new table for each

-- The time of a tag never goes back, so if the server's clock is set back by an hour, nothing waits an hour longer.
-- `clock`: when the tag was last processed, within a second, and how far that is ahead of the server's clock (ms).
local CLOCK = '>I6I6'
local NOTED_MS = 1000

local function note_time(ahead)
  redis.pcall('SET', P .. 'clock', struct.pack(CLOCK, now, ahead)) -- fails on a full server, which can still be read
end

-- Sets `now` and `now_us` to the time of the tag. `noted`: its `clock`. Returns how far that is ahead of the server (ms).
local function set_time(noted)
  local last, ahead = 0, 0
  if noted then
    last, ahead = struct.unpack(CLOCK, noted)
  end
  local set_back = last - SERVER_MS - ahead
  ahead = ahead + math.max(0, set_back)
  now, now_us = SERVER_MS + ahead, SERVER_US + ahead * 1000
  if set_back > 0 or now - last >= NOTED_MS then
    note_time(ahead)
  end
  return ahead
end

local function serve(work)
  local replies = {}
  for i, prefix in ipairs(KEYS) do
    P, T, now, now_us = prefix, {}, SERVER_MS, SERVER_US
    replies[i] = work(ARGV[1 + i])
  end
  return cmsgpack.pack(replies)
end

-- Processes only tags whose memory was made ready on the server run of the caller's connection (_memory.lua).
local READY = 'ready ' .. NODE .. '\n'

local function is_ready(life)
  return life and string.sub(life, 1, #READY) == READY
end

local function serve_ready(work)
  return serve(function(arguments)
    local found = call('MGET', P .. 'life', P .. 'tables', P .. 'clock')
    local life = found[1]
    if not is_ready(life) then
      return NOT_READY
    end
    T.life, T.stored_tables, T.ahead = life, found[2], set_time(found[3])
    return work(arguments)
  end)
end
