"""The files that a job keeps on disk, written so that they survive crashes and power cuts."""
