-- Shared beginning of every script, which serves several hash tags in one call.
-- KEYS: for each tag the prefix of all its keys. ARGV[1]: MessagePack of {node, clock in us (0: the server's), dedup
-- window in ms, fsync on every write?}. ARGV[1 + i]: arguments of tag KEYS[i], in the form that the script describes.
-- Reply: MessagePack of an array, one item a tag: false = not ready, true = fenced, else what the script says.
local call = redis.call
local NODE, now_us, WINDOW, DURABLE = unpack(cmsgpack.unpack(ARGV[1]))
if now_us == 0 then
  local clock = call('TIME')
  now_us = clock[1] * 1000000 + clock[2]
end
local now = math.floor(now_us / 1000)

local NOT_READY, FENCED = false, true
local NOTHING = {} -- the reply where there is nothing to say

local P -- the prefix of the tag being served
local T -- what is known of that tag; a new table for each

local function serve(work)
  local replies = {}
  for i, prefix in ipairs(KEYS) do
    P, T = prefix, {}
    replies[i] = work(ARGV[1 + i])
  end
  return cmsgpack.pack(replies)
end

-- Serves only the tags whose memory was made ready on the server run that the caller is connected to (_memory.lua).
local READY = 'ready ' .. NODE .. '\n'

local function serve_ready(work)
  return serve(function(arguments)
    local found = call('MGET', P .. 'life', P .. 'tables')
    local life = found[1]
    if not life or string.sub(life, 1, #READY) ~= READY then
      return NOT_READY
    end
    T.life, T.stored_tables = life, found[2]
    return work(arguments)
  end)
end
