"""Parts of `operators.inductor`: reading what Inductor writes, and writing it as a plain kernel module."""
