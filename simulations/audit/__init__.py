"""`fedsw audit`: how much of a claimed epsilon an attacker can show, and whether a finished run's files agree."""
