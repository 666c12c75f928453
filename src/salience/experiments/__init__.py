"""Training runs that compare methods, and what they measured: rows, summaries and files."""
