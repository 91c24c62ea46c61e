"""Request and response models of the workflow API."""
