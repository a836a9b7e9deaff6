"""What the stores of responses and of files have in common: connections to PostgreSQL, URL options, outages."""
