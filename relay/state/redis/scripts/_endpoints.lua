-- Health of what is POSTed to. One string an endpoint, a MessagePack map:
--   n next free slot of the rate (us), h paused until (ms; -1: held, until it is resumed),
--   w why it is held, a since when (ms), x more about that; v when it was held or resumed last (ms),
--   c length of the current run of failures, f its begin (ms), o when an open breaker may be probed (ms),
--   s since when it fails without any success between (ms), m how often since, l when it did last (ms),
--   z absence (ms) that there had been when it began to,
--   k token of the probe under way, q when another may be sent (ms),
--   y when one was allowed early (ms), as the endpoint was up otherwise,
--   j lanes that wait for a place in flight (_in_line.lua)
-- `held` is the set of those that are held.
-- What happens to the breaker is written as pure steps in tests/fakes/breaker.py, which the contract tests compare with.
local IDLE_MS = 7 * 86400 * 1000 -- an endpoint nobody used for so long is healthy
local ABSENT_MS = 6000 -- who is there says so every 2 s
local UP = 2 -- in place of healthy: it answered something else than an attempt
local SILENCE_MS = 86400 * 1000 -- a failure that nothing followed for so long is no part of the outage

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

-- Writes are gathered: many attempts of one endpoint cost one SET a call.
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

-- ms until the pause ends; -1: until resumed; 0: none.
local function paused(e)
  if e.h == -1 then
    return -1
  end
  return math.max(0, (e.h or 0) - now)
end

local function close_breaker(e)
  e.c, e.f, e.o, e.k, e.q, e.s, e.m, e.l, e.z, e.y = 0, nil, nil, nil, nil, nil, nil, nil, nil, nil
end

-- ms in which nobody was there to make attempts, in all. `there`: {when somebody was there last, absence until then}.
local function absence()
  if not T.there then
    local stored = call('GET', P .. 'there')
    T.there = stored and cmsgpack.unpack(stored) or { now, 0 }
  end
  local last, before = unpack(T.there)
  return now - last > ABSENT_MS and before + now - last or before
end

-- Lanes that wait for it need not wait any longer (hints.py). A login that may not publish loses the hint, and nothing
-- else: they look every 10 s.
local function wake(owner)
  redis.pcall('PUBLISH', P .. 'wakes', owner)
end

-- When it was held or resumed last, as far as that is surely remembered.
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

-- ms since the first failure that no success followed, without those in which nobody was there; 0: there is none.
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

-- Whether it changed anything. The endpoint answered a GET, or called us. A URL that only answers GETs is pinged no more
-- than twice as often for that.
local function note_up(e, offline_after, ping_every)
  local waits = e.o and not e.k and e.o > now and outage(e) >= offline_after
  if not waits or now - (e.y or 0) < ping_every then
    return false
  end
  e.o, e.y = now, now
  return true
end

-- Whether it changed anything. While it is open or half-open only the probe counts: the others began before it opened.
local function record_health(e, token, healthy, failures, window, open_for, offline_after, ping_every)
  if healthy == UP then
    return note_up(e, offline_after, ping_every)
  end
  if e.o then
    if token == '' or e.k ~= token then
      if token ~= '' or healthy ~= 1 or e.k or e.o <= now then
        return false
      end
      e.o = now -- it answered a question about a message: there is reason to probe it
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
