"""Data to train models on, made of what searches recorded."""
