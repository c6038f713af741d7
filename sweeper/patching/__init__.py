"""Writes what a tune found into the user's own files, as a diff that is proved without sweeper."""
