"""The installer: creates users, directories, Redis, releases and units on one host. Stdlib only."""
