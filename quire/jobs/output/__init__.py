"""What a job writes: tables of answers, made from the stored records."""
