"""`python -m sluice.gateway`."""

from sluice.gateway.main import main

if __name__ == "__main__":
    main()
