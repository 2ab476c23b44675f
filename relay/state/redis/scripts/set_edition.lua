--include _life _memory
-- Works while the tag is not ready. Arguments: a number, which replaces a lower one.
return serve(function(edition)
  local state, node, about = read_life()
  if node ~= NODE then
    return NOT_READY
  end
  about.edition = math.max(about.edition or 0, tonumber(edition))
  write_life(state, about)
  return NOTHING
end)
