"""`python -m sluice`, the same as `sluice`."""

from sluice.cli import main

if __name__ == "__main__":
    main()
