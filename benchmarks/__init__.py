"""What quire is measured on, and against what. See offline.py for the clock."""
