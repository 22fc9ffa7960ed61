"""What every room stands on, beside errors: notes, QUIRE_HOME, the boundary to code of others."""
