"""The web console: a page for operators and the HTTP API that it uses.

Start reading in service.py (the listener) and app.py (what happens to a request). openapi.json
describes the API; static/ is the page. Only the registry of services and the configuration import
this package.
"""
