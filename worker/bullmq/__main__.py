"""`python -m sluice.worker.bullmq`."""

from sluice.worker.bullmq.main import main

if __name__ == "__main__":
    main()
