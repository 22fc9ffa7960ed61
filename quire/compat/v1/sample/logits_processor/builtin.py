"""What processors keep their state with, under the name scripts know."""

from quire.sampling.batch_interface import process_dict_updates

__all__ = ["process_dict_updates"]
