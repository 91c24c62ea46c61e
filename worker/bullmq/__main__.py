"""`python -m worker.bullmq`."""

from worker.bullmq.main import main

if __name__ == "__main__":
    main()
