"""Training scripts of the user's own, driven as they are: run, listened to, timed, ended."""
