--include _life
-- Arguments: MessagePack of {name, owner, ms}. Reply: {whether the owner holds it}.
return serve(function(arguments)
  local name, owner, lease_ms = unpack(cmsgpack.unpack(arguments))
  local key = P .. 'lease:' .. name
  local holder = call('GET', key)
  if holder and holder ~= owner then
    return { false }
  end
  call('SET', key, owner, 'PX', lease_ms)
  return { true }
end)
