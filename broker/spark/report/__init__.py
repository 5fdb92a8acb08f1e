"""HTML reports: one self-contained file each, with its plots as SVG.

Start with `page`. Pages are well-formed XML too. Names and bodies that clients chose are written
only by `page.tag`, which escapes them. No module here needs Spark or PyArrow. Imported by the
reports of `rollup` and `triage`.
"""
