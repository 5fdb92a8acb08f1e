"""Writing by the bulk API: staged uploads and transactional commits.

Start with `commits` (the protocol in two steps) and `handlers` (its HTTP). Imported by `bulk`.
"""
