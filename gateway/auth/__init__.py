"""API keys, scopes, tenants and quotas."""
