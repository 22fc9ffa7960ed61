"""The parts a decoder is built from."""
