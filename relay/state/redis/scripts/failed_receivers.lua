--include _life
-- No arguments. Reply: {receiver, ...}; those that no longer have entries are removed.
return serve_ready(function()
  local found = {}
  for _, receiver in ipairs(call('SMEMBERS', P .. 'xr')) do
    if call('EXISTS', P .. 'xo:' .. receiver) == 1 then
      found[#found + 1] = receiver
    else
      call('SREM', P .. 'xr', receiver)
    end
  end
  return found
end)
