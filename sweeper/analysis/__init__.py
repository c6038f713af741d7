"""Records in, facts out."""
