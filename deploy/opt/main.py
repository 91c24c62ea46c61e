"""/opt/redis-gateway/main.py: entry point of redis-gateway.service."""

from gateway.main import main

main()
