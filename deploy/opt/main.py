"""/opt/redis-gateway/main.py: entry point of redis-gateway.service."""

from sluice.gateway.main import main

main()
