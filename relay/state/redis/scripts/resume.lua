--include _life _endpoints
-- Works while the tag is not ready. Arguments: an owner.
return serve(function(owner)
  resume(owner)
  save_endpoints()
  return NOTHING
end)
