"""From candidate source to launch plan and binaries, in disposable CPU processes."""
