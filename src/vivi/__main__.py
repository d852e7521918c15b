"""`python -m vivi` is the command `vivi`."""

from vivi.cli import main

if __name__ == "__main__":
    main()
