"""Where people already train: one module per framework, each with an extra of its own."""
