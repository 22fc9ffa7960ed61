"""Parameters beside SamplingParams, and the rules that every parameter keeps."""
