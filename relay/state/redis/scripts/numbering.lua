--include _life _numbers
-- Arguments: an owner. Reply: {its numbers as in _numbers.lua}, or {} if none was given.
return serve_ready(function(owner)
  local numbers = numbers_of(owner)
  return numbers[1] > 0 and { numbers } or NOTHING
end)
