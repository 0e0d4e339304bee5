"""From a folder of tables to an experiment: a draft of the declaration, and every fault of the files."""
