"""Everything that lives as long as an LLM, and the methods that work on it.

It is made by:       session.py, from loading.py (files, spec, decisions, weights, an executor) and
                     making.py; ranks.py and rank.py where several processes compute
A call is read:      intake.py and param_copies.py, with adapters.py, media.py, priorities.py
It is run:           gather.py (a list), engine_thread.py (any number of requests at any time, for
                     async_llm.py and the server); turns.py lets one call in at a time
Other answers:       beams.py, scoring.py, pooling.py with pooling_methods.py and score_method.py
How weights are:     quantisation.py, cpu_weights.py, gpu_weights.py, int8_default.py (8 bits where
                     they are fast and accurate enough), fallback.py (Transformers computes)
Seen from outside:   controls.py, views.py and workers.py (names that scripts know), metrics.py
"""
