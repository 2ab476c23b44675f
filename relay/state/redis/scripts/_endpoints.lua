-- Health of endpoints. One string per endpoint, a MessagePack map:
--   n next free slot of the rate (us), h paused until (ms; -1: held until it is resumed),
--   w reason of the hold, a its begin (ms), x its detail; v when it was last held or resumed (ms),
--   c length of the current run of failures, f its begin (ms), o when an open breaker may be probed (ms),
--   s begin of the failures without a success between (ms), m their number, l the last of them (ms),
--   z total absence (ms) when these failures began,
--   k token of the probe in progress, q when another may be sent (ms),
--   y when an early probe was allowed (ms), because the endpoint was otherwise up,
--   j lanes that wait for a place in flight (_in_line.lua)
-- `held` is the set of held endpoints.
-- tests/fakes/breaker.py has the same breaker as pure steps, with which the contract tests compare this one.
local IDLE_MS = 7 * 86400 * 1000 -- an endpoint that was unused for this long is healthy
local ABSENT_MS = 6000 -- processes report their presence every 2 s
local UP = 2 -- instead of healthy: it answered something other than an attempt
local SILENCE_MS = 86400 * 1000 -- a failure is not part of an outage if nothing followed it for this long

local function endpoint(owner)
  T.endpoints = T.endpoints or {}
  local e = T.endpoints[owner]
  if not e then
    local value = call('GET', P .. 'e:' .. owner)
    e = value and cmsgpack.unpack(value) or { c = 0 }
    T.endpoints[owner] = e
  end
  return e
end

-- Writes are collected: many attempts of one endpoint cost one SET per call.
local function touch(owner)
  T.touched = T.touched or {}
  T.touched[owner] = true
end

local function save_endpoints()
  for owner in pairs(T.touched or {}) do
    local e = T.endpoints[owner]
    if e.h == -1 then
      call('SET', P .. 'e:' .. owner, cmsgpack.pack(e))
    else
      call('SET', P .. 'e:' .. owner, cmsgpack.pack(e), 'PX', math.max(IDLE_MS, (e.h or 0) - now))
    end
  end
end

-- ms until the pause ends; -1: until it is resumed; 0: not paused.
local function paused(e)
  if e.h == -1 then
    return -1
  end
  return math.max(0, (e.h or 0) - now)
end

local function close_breaker(e)
  e.c, e.f, e.o, e.k, e.q, e.s, e.m, e.l, e.z, e.y = 0, nil, nil, nil, nil, nil, nil, nil, nil, nil
end

-- Total ms in which no process could make attempts. `there`: {when a process last reported, absence until then}.
local function absence()
  if not T.there then
    local stored = call('GET', P .. 'there')
    T.there = stored and cmsgpack.unpack(stored) or { now, 0 }
  end
  local last, before = unpack(T.there)
  return now - last > ABSENT_MS and before + now - last or before
end

-- Wakes the lanes that wait for the endpoint (`hints` in servers.py). A login that may not publish only loses the hint:
-- lanes poll every 10 s.
local function wake(owner)
  redis.pcall('PUBLISH', P .. 'wakes', owner)
end

-- When it was last held or resumed; 0 if that may no longer be stored.
local function decided(e)
  return e.v and now - e.v <= IDLE_MS and e.v or 0
end

local function resume(owner)
  local e = endpoint(owner)
  e.h, e.w, e.a, e.x, e.v = nil, nil, nil, nil, now
  close_breaker(e)
  call('SREM', P .. 'held', owner)
  touch(owner)
end

-- ms since the first failure without a later success, without times of absence; 0: there is none.
local function outage(e)
  if not e.s or now - e.l > SILENCE_MS then
    return 0
  end
  return math.max(0, now - e.s - (e.z and absence() - e.z or 0))
end

local function count_failure(e)
  if not e.s or now - e.l > SILENCE_MS then
    e.s, e.m, e.z = now, 0, absence()
  end
  e.m, e.l = e.m + 1, now
end

-- The endpoint answered a GET, or called us. Returns whether it changed anything. A URL that only answers GETs is pinged
-- at most twice as often because of this.
local function note_up(e, offline_after, ping_every)
  local waits = e.o and not e.k and e.o > now and outage(e) >= offline_after
  if not waits or now - (e.y or 0) < ping_every then
    return false
  end
  e.o, e.y = now, now
  return true
end

-- Records an outcome; returns whether it changed anything. While the breaker is open or half-open only the probe counts,
-- because other attempts began before it opened.
local function record_health(e, token, healthy, failures, window, open_for, offline_after, ping_every)
  if healthy == UP then
    return note_up(e, offline_after, ping_every)
  end
  if e.o then
    if token == '' or e.k ~= token then
      if token ~= '' or healthy ~= 1 or e.k or e.o <= now then
        return false
      end
      e.o = now -- it answered a status GET, so an early probe is promising
      return true
    end
    e.k, e.q = nil, nil
    if healthy == 1 then
      close_breaker(e)
    elseif healthy == 0 then
      count_failure(e)
      e.o = now + (outage(e) >= offline_after and ping_every or open_for)
    end
    return true
  end
  if healthy == -1 or healthy == 1 and e.c == 0 then
    return false
  end
  if healthy == 1 then
    close_breaker(e)
    return true
  end
  if e.c == 0 or now - e.f > window then
    e.c, e.f = 1, now
  else
    e.c = e.c + 1
  end
  count_failure(e)
  if e.c >= failures or e.m >= failures and outage(e) >= offline_after then
    e.o = now + open_for
  end
  return true
end
