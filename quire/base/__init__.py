"""Used by every room, beside errors: notes, QUIRE_HOME, the boundary to the code of others."""
