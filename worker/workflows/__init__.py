"""The worker's side of workflows: runs their steps, and looks after those that got stranded."""
