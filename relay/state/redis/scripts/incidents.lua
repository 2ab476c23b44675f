--include _life
-- Works while the tag is not ready: incidents are hints. No arguments. Reply: {id, incident, id .. '/' .. verb, mark, ...}.
return serve(function()
  return call('HGETALL', P .. 'in')
end)
