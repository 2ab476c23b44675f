-- `life` identifies this memory: '<ready or recovering> <node>\n', then MessagePack of a map:
--   pass name of the recovery pass, fsync whether every write is fsynced, lossy whether anything may be missing,
--   since when the loss was noticed (ms), doubt until when a missing row proves nothing (ms), open whether finished rows
--   that the log proves may be missing, kept rows of deliveries that ended before then exist (ms), seen when this memory
--   was last read or written (ms, by the server's own clock, because it is compared with the log), edition number of this
--   memory: lower than that on the log after other memory was in use, evicted number of keys that the server had evicted
--   then, beats number of writes of this map, about one in 10 s, form version of all data of this tag (missing: 1)
-- Since form 2, READY in _life.lua has the number after the node, so that scripts of older releases see it as not ready.
local FORM = 1

local function about_life(life)
  return cmsgpack.unpack(string.sub(life, string.find(life, '\n', 1, true) + 1))
end

-- Whether a missing row proves nothing, because of a loss of memory: T.loss.
local function in_doubt()
  T.loss = T.loss or about_life(T.life)
  return now < (T.loss.doubt or 0)
end

-- Whether a missing row may be read back from the log.
local function may_come_back()
  return in_doubt() and T.loss.open
end

-- Whether an attempt may have been lost that began after `at` (ms).
local function may_be_lost_since(at)
  return may_come_back() or in_doubt() and at < T.loss.since
end

-- State, node, map; nil if there is none, or another program has put something else there (MGET: also of another type).
local function read_life()
  local life = call('MGET', P .. 'life')[1]
  local state, node = string.match(life or '', '^(%a+) ([^\n]*)\n')
  if state then
    local readable, about = pcall(about_life, life)
    if readable and type(about) == 'table' then
      return state, node, about
    end
  end
end

local function is_newer(about)
  return about and (about.form or 1) > FORM
end

local function write_life(state, about)
  about.form = FORM
  call('SET', P .. 'life', state .. ' ' .. NODE .. '\n' .. cmsgpack.pack(about))
end
