--include _life _tables _finished _forms _packing _numbers _rows
-- Arguments: concatenated row digests. Finished rows are stored elsewhere, and stay.
return serve_ready(function(list)
  for _, digest in ipairs(want_rows(list)) do
    T.changes[digest] = false
  end
  save_rows()
  save_tables()
  return NOTHING
end)
