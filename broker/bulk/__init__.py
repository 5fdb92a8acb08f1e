"""The bulk door: whole ranges of logs by HTTP, for pipelines. See docs/bulk-api.md."""
