"""Files of the revision store."""
