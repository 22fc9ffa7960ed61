"""Parts of a LayerPlan that are plans of their own. Know nothing of torch."""
