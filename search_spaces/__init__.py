"""The search spaces that come with sweeper; `sweeper spaces` lists them."""
