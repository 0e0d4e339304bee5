"""What is declared about records that clients bring themselves."""
