"""Tables, figures and sentences, made only from what experiments recorded."""
