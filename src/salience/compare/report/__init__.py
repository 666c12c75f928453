"""Tables, charts and sentences, made only from the files of a run directory."""
