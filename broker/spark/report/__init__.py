"""Reports for people: one HTML file each, with its plots inside, and nothing to fetch.

Pages are well-formed XML too. Names and bodies that others chose reach them only through
markup.tag, which escapes. No module here needs Spark or PyArrow.
"""
