"""HTTP listeners: which connections and requests they accept, and their pages.

Start with `connections` (limits of time and number) and `guard` (which requests are answered).
Imported by every listener that serves HTTP.
"""
