"""What gateway and worker agree on: contracts, codecs, settings, connections, the job store."""
