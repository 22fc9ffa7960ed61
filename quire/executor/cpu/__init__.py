"""Plans run on the cores of this machine."""
