"""The first start on a GPU made short: kernels compiled while other things load."""
