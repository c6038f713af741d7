"""Says what a sweep found: its verdict, its numbers, and the words for everything that prints them."""
