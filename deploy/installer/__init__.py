"""The installer: users, directories, Redis, releases and units of one box. Stdlib only."""
