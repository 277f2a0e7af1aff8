"""Files and data sets, and the rows in them, read into conversations or rejected with a named reason."""
