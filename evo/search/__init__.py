"""The search itself: it asks and records, and never evaluates."""
