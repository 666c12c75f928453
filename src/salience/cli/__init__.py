"""The commands of ``salience``, one module each; ``main`` puts them together."""
