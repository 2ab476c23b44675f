--include _life _memory
-- Arguments: ''. Reply: {since, kept} in ms if finished rows may be missing, else {}.
return serve_ready(function()
  local about = about_life(T.life)
  return about.open and { about.since, about.kept or 0 } or NOTHING
end)
