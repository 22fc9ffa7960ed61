"""What each rank of a model that is split over several ranks holds."""
