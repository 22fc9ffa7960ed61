"""Decides which tokens the next step computes, and handles the tokens it drew. No torch, no text.

The nouns:      sequence.py (one answer being written), watches.py (checks of its tokens),
                rows.py (those that run, as columns), placements.py (rows over blocks),
                row_starts.py (what a device is sent of one), waiting.py (those that want a row)
A plan is made: scheduler.py within limits.py, with admission.py (what may begin), chunks.py
                (prompts), shares.py (their shares), forking.py (samples), repeats.py (steps of one
                plan), turns.py (all rows by masks, or a half), groups.py (shared beginnings),
                draft.py
When full:      preemption.py (which sequence gives way), windows.py (blocks that no layer sees any
                more), lanes.py and pass_times.py (how far the background yields), adapters.py
                (LoRA adapters take turns)
A result comes: commit.py, with judging.py (tokens that are kept), jumps.py (tokens that must come),
                stopping.py (why a row ends), held.py (logits that are with processors), reports.py
                (what happened)
Kinds of rows:  row_kinds.py and pacing.py (how a row is drawn for), guesses.py, device_guesses.py,
                trials.py and ahead.py (tokens tried ahead), beams.py, beam_rule.py and
                beam_guides.py (searches), scoring.py and score_tree.py (given tokens), hidden.py,
                media.py
"""
