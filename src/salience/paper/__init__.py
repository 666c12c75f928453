"""The reproduction of the paper: its data, networks, figures and tables."""
