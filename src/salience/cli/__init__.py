"""The commands of ``salience``, a module each; ``cli`` puts them together."""
