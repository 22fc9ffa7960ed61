"""Makes the first start on a GPU short: kernels are compiled while other things load."""
