-- `life` says whose memory this is: '<ready or recovering> <node>\n', then MessagePack of a map:
--   pass name of the recovery pass, fsync whether every write is fsynced, lossy whether anything can be missing,
--   since when its loss was noticed (ms), doubt until when a missing row proves nothing (ms), open whether finished rows
--   may be missing that the log proves, kept those of what ended until then are there (ms), seen when it was last known
--   that this memory was read or written (ms, by the server's own clock, as it is compared with the log), form version of all that is kept under this tag (missing: 1)
-- From form 2 on, READY in _life.lua has the number behind the node: no script of an older release takes it for ready.
local FORM = 1

local function about_life(life)
  return cmsgpack.unpack(string.sub(life, string.find(life, '\n', 1, true) + 1))
end

-- State, node, map; nil without any.
local function read_life()
  local life = call('GET', P .. 'life')
  if life then
    local state, node = string.match(life, '^(%a+) ([^\n]*)\n')
    return state, node, about_life(life)
  end
end

local function is_newer(about)
  return about and (about.form or 1) > FORM
end

local function write_life(state, about)
  about.form = FORM
  call('SET', P .. 'life', state .. ' ' .. NODE .. '\n' .. cmsgpack.pack(about))
end
