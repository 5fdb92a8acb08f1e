"""What operators look at: metrics, and later the admin pages."""
