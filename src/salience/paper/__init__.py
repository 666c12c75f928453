"""The reproduction of the paper: data readers, networks, figures, tables and claims."""
