"""A run as one HTML file that opens anywhere: no network, no server, nothing runs from the data."""
