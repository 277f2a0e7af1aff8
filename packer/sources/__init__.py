"""Rows of data sets: columns, messages and their parts, read into conversations or rejected with a named reason."""
