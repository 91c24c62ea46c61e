"""/opt/redis-gateway/main.py: what redis-gateway.service runs."""

from gateway.main import main

main()
