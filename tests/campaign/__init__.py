"""Hours of faults against real brokers, and a table of the results: `make campaign`."""
