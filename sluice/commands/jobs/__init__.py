"""Commands for jobs, one module each."""
