"""Commands that work on this machine without a gateway: doctor, key, config, audit, model."""
