"""After the last round: what the records that clients kept out of training say of the model, released once."""
