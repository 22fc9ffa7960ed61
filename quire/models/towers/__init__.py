"""What encodes media: towers and projectors of Transformers' models, without their text."""
