"""Judges a change that somebody made to a training script: is it faster, and does it train the same?"""
