"""Model files: finds them, reads them safely, and makes named tensors of them."""
