"""The bulk API in tests: an engine with writers, a writer to kill."""
