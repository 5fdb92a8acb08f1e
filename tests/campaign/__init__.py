"""Hours of faults against real brokers, and a table of what they showed: `make campaign`."""
