"""What a job keeps on disk, and what makes it last."""
