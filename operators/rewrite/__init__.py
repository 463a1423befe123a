"""Rule-based rewrites over libcst, one per file; each keeps comments and layout."""
