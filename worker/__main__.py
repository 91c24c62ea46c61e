"""`python -m sluice.worker`."""

from sluice.worker.main import main

if __name__ == "__main__":
    main()
