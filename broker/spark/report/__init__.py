"""Reports for people: one HTML file each, with its plots inside, and nothing to fetch.

Start with `page`. Pages are well-formed XML too. Names and bodies that clients chose reach them
only through `page.tag`, which escapes. No module here needs Spark or PyArrow. Imported by the
reports of `rollup` and `triage`.
"""
