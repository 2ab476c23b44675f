--include _life _finished _messages
-- A[5]: {row digest, ...}. Reply: what is known of each; 0: nothing.
if not alive() then
  return false
end
local known = {}
for i, key in ipairs(A[5]) do
  known[i] = load_message(key) or 0
end
return cmsgpack.pack(known)
