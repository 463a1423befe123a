"""Operators that ask a language model for a whole new module."""
