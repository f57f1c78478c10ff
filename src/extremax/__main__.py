"""``python -m extremax``: the command line."""

from extremax.cli import main

if __name__ == "__main__":
    main()
