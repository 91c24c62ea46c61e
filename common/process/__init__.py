"""The process and its host: start-up checks, systemd, the embedded Redis, resource usage."""
