"""Watchers of the training loop: every file with a class `Hook` is one, called in the order of names."""
