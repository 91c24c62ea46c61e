"""Webhook deliveries, their hosts and dead letters."""
