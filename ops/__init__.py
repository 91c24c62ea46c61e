"""Operator commands that work without a gateway: doctor, key, config, audit, model."""
