"""`python -m worker.bullmq`."""

from worker.bullmq.process import main

if __name__ == "__main__":
    main()
