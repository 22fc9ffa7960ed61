"""A run as one HTML file that needs no network and no server, and runs no code from the data."""
