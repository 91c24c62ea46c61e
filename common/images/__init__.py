"""Images: state changes as scripts, records, storage and spool."""
