"""Where a cursor stands in the segments of its log; nothing here is for Python."""
