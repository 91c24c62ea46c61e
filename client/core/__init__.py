"""What both clients share, and what does no input or output: requests, answers, patience, SSE."""
