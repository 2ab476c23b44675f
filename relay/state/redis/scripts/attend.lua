--include _life _endpoints
-- No arguments, no reply: somebody is there to make attempts.
return serve_ready(function()
  call('SET', P .. 'there', cmsgpack.pack({ now, absence() }))
  return NOTHING
end)
