"""`python -m client`, the same as `sluice`."""

from client.cli import main

if __name__ == "__main__":
    main()
