"""Operators that ask a language model for a module, as a whole or as edits."""
