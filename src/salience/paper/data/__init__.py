"""Data that ships with the package, and what a dataset says about its own examples."""
