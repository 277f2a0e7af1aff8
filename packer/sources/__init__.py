"""Files, addresses and hub data sets: which of them are read, and the rows in them."""
