"""What the losses of each example tell, for people: a page and a table."""
