"""The process and its host: systemd, the embedded Redis, resource usage."""
