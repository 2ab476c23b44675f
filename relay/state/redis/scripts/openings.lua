--include _life _endpoints
-- Arguments: MessagePack of {owner, ...}. Reply: {{ms until a POST may start by the rate; ms until a probe may}, ...}.
return serve_ready(function(owners)
  local openings = {}
  for i, owner in ipairs(cmsgpack.unpack(owners)) do
    local e = endpoint(owner)
    local rate = e.n and math.max(0, math.ceil((e.n - now_us) / 1000)) or 0
    openings[i] = { rate, e.o and math.max(0, (e.k and e.q or e.o) - now) or 0 }
  end
  return openings
end)
