"""``python -m salience``: the same as the ``salience`` command."""

from salience.cli.main import main

if __name__ == "__main__":
    main()
