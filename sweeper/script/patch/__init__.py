"""Writes the changes that a tune found into the user's files, as a diff that is verified without sweeper."""
