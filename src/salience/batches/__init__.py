"""Any collated batch and any dataset: nested structures, slots, labels, rows."""
