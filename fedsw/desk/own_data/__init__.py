"""From a folder of tables to an experiment: drafted, checked, described; synthetic tables and what they are worth."""
