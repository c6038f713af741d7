"""First search spaces (`sweeper init`), and a look at one before it runs (`sweeper check`)."""
