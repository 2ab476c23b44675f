--include _life _finished _messages
-- A[5]: as for arrive. Moves the rows to their finished form.
if not alive() then
  return false
end
for _, item in ipairs(A[5]) do
  local key, row = item[1], item[2]
  local value = call('GET', P .. 'm:' .. key)
  if value then
    row = unpack_message(value)
  end
  if value or not find_finished(key) then
    row[1] = 3
    keep_finished(key, pack_message(row))
    call('DEL', P .. 'm:' .. key)
  end
end
save_tables()
return cmsgpack.pack({})
