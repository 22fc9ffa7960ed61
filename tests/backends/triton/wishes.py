"""Lines of sampling parameters that between them use everything the kernels know."""

from __future__ import annotations

from tests.backends.triton.sampling_checks import Wish

PLAIN = [Wish(0.0), Wish(1.0), Wish(0.7), Wish(0.5), Wish(0.0), Wish(1.3, sample=3), Wish(0.01)]
CUT = [
    Wish(1.0, top_k=3),
    Wish(0.8, top_p=0.9),
    Wish(0.8, top_k=5, top_p=0.5),
    Wish(1.0, min_p=0.1),
    Wish(0.9, top_k=50, top_p=0.95, min_p=0.02),
    Wish(1.2, top_p=0.3),
    Wish(0.0, top_k=2),
    Wish(2.0, top_k=1),
    Wish(1.0, top_p=0.99),
]
KEPT = [wish for wish in CUT if wish.temperature > 0] + [Wish(1.0, top_k=4000)]
