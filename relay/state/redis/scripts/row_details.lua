--include _life _tables _finished _forms _packing _numbers _rows _room _parking
-- Arguments: concatenated row digests. Reply: {{row, ms since its attempt began, or since it is AWAITING, -1: unknown;
-- whether that attempt is in progress; ms until it starts; ms until it is due that was never tried, if it is parked}, ...}.
return serve_ready(function(list)
  local watched = {}
  for i, digest in ipairs(want_rows(list)) do
    local row = load_row(digest) or fresh_row(0)
    local since, starts = -1, 0
    if row.t and row.s >= ENQUEUED and row.s <= AWAITING and row.s ~= ACCEPTED then
      since = math.max(0, now - row.t)
    end
    if row.k and row.w then
      starts = math.max(0, math.ceil((row.w - now_us) / 1000))
    end
    local due_in = 0
    if row.s < ENQUEUED then
      for lane in lanes_with_intent(digest) do
        due_in = math.max(due_in, math.ceil((call('ZSCORE', P .. 'due:' .. lane, digest) or 0) - now))
      end
    end
    watched[i] = { shown(digest, row), since, row.k ~= nil, starts, due_in }
  end
  return watched
end)
