--include _life
-- Works while the tag is not ready: for display. No arguments. Reply: {what `keep_waiting` stored}; empty without.
return serve(function()
  return { call('GET', P .. 'wt') or nil }
end)
